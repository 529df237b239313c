"""DVC: its commands, a stage run by it, and the reason of a failure."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from flows.process.child import run_child
from flows.process.exits import BUG, shell_code
from flows.process.paths import DVC_LOCK
from flows.process.patience import retry
from flows.process.progress import update_resumed
from flows.process.runner import StageError, exit_file
from transformer_core.config import Machine
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.files import read_json
from transformer_core.yaml_io import read_yaml

DVC_FILE = ".dvc"
_WRITING_SECONDS = 0.5
# What DVC prints for each stage: what to type next, and the command of the stage.
_ADVICE = re.compile(r"> exec sh |\s*(Updating lock|To track the|git add|To enable auto|dvc config core|Use `dvc push`|Data and pipelines)")
# The end of DVC's message where a stage of another DVC command is running, for which `--wait-for-lock` does not wait.
_STAGE_BUSY = re.compile(r"you can manually remove '.*rwlock' and try again\.$")
_STAGE_ENDED = re.compile(r"exited with (-?\d+)$")  # The message of dvc.stage.exceptions.StageCmdFailedError.


def repository_stages() -> dict[str, Any]:
    """Return the stages of dvc.yaml by name, in the order of the file, in which they run. Raises `UserError` (78)."""
    document = read_yaml(Path("dvc.yaml"))
    found = document.get("stages") if isinstance(document, dict) else None
    if not (isinstance(found, dict) and found):
        raise configuration_error("dvc.yaml: has no stages", "Check it with: dvc status")
    return found


def stages_up_to(last: str | None) -> list[str]:
    """Return the names of the stages up to one of them, None for the last. Raises `UserError` (78): no such stage."""
    names = list(repository_stages())
    if last is not None and last not in names:
        raise configuration_error(f"last_stage: no stage is called {last!r}", f"Stages: {', '.join(names)}.")
    return names if last is None else names[: names.index(last) + 1]


def changed_from(names: Sequence[str]) -> Sequence[str]:
    """Return these stages from the first on that DVC would run: its outputs may change those after it. All while DVC is busy."""
    done = subprocess.run(dvc("status", "--json", *names), capture_output=True, text=True, check=False)
    if done.returncode:
        return names
    changed = json.loads(done.stdout)
    return names[next((place for place, name in enumerate(names) if name in changed), len(names)) :]


class StageOutput:
    """The output of a stage, passed on without the advice of DVC."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write, self.last_line = write, ""
        self.resumed = 0  # The update from which the training has gone on last.

    def __call__(self, line: str) -> None:
        if not line.strip() or _ADVICE.match(line):
            return
        self.last_line = line
        self.resumed = update_resumed(line) or self.resumed
        self._write(line)


def reproduce(name: str, machine: Machine, write: Callable[[str], None], environment: Mapping[str, str] | None = None) -> str:
    """Run a stage with DVC, or take it from DVC's cache, and return "ran" or "cached".

    A failure that may pass is tried again, see `retry`. `write` gets the lines of the output.

    Raises `StageError`: it failed, or exceeded `machine.limit_hours`.
    """
    output = StageOutput(write)
    run = partial(_run_once, name, machine.limit_hours, output, environment or {})
    return retry(machine.patience_hours, run, write, lambda: output.resumed)


def _run_once(name: str, limit_hours: float | None, output: StageOutput, environment: Mapping[str, str]) -> str:
    report, output.last_line = exit_file(name), ""
    report.unlink(missing_ok=True)
    repair()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])  # `python` is this interpreter.
    command, limit_seconds = dvc("repro", "--single-item", name), limit_hours and 3600 * limit_hours
    try:
        code = run_child(command, output, limit_seconds, {**environment, "PATH": path})
    except subprocess.TimeoutExpired:
        raise StageError(ExitCode.INTERRUPTED, f"{name}: ended after machine.limit_hours ({limit_hours:g})") from None
    if code:
        raise StageError(*failure(name, code, output.last_line))
    return "ran" if report.exists() else "cached"


def dvc(*arguments: str) -> list[str]:
    """Return a command line of DVC that waits while another DVC command has the repository's lock, but not while that runs a stage."""
    return [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]


def repair() -> None:
    """Remove DVC's record of running commands if it is damaged or names no command that still runs, and dvc.lock if it is empty.

    DVC writes both in place, so a kill may leave an empty file. Every later command then ends with "Unable to read RWLock-file", or with
    "'dvc.lock' validation failed". DVC finds what dvc.lock had recorded in its run-cache. And it waits for ever for a command that was
    killed if another process has its number, as after a restart of the machine or in another container.
    """
    for file, is_damaged in ((Path(".dvc/tmp/rwlock"), _is_stale), (DVC_LOCK, lambda file: file.exists() and not file.stat().st_size)):
        # Looked at twice, because another DVC may be writing it.
        if is_damaged(file):
            time.sleep(_WRITING_SECONDS)
            if is_damaged(file):
                file.unlink(missing_ok=True)


def _is_stale(file: Path) -> bool:
    try:
        record = read_json(file)
        # The writer of each path, and the readers of each path.
        entries = [*record.get("write", {}).values(), *(reader for readers in record.get("read", {}).values() for reader in readers)]
        return bool(entries) and not any(map(_is_running, entries))
    except FileNotFoundError:
        return False
    except (UserError, AttributeError, KeyError, TypeError):
        return True


def _is_running(entry: Any) -> bool:
    """Return whether the process of a command runs that command. DVC records the path of the program as Python has it, then arguments."""
    try:
        command = " ".join(psutil.Process(entry["pid"]).cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # Of another user.
        return True
    return command.endswith(re.sub(r"^.*/(dvc|__main__\.py)( |$)", "", entry["cmd"]))


def failure(name: str, dvc_code: int, last_line: str) -> tuple[int, str]:
    """Return exit code and reason of a failed stage: from its own report or, if that is missing or damaged, from DVC."""
    if _STAGE_BUSY.search(last_line):
        return ExitCode.UNAVAILABLE, f"{name}: another DVC command runs a stage in this repository. Wait until it ends, then run again."
    with suppress(OSError, UserError, KeyError, TypeError, ValueError, OverflowError):
        found = read_json(exit_file(name))
        reason = str(UserError(str(found["message"]), str(found["remedy"])))
        if code := int(found["code"]):  # Otherwise DVC failed after the stage.
            return code, reason if reason.startswith(f"{name}:") else f"{name}: {reason}"
    seen = _STAGE_ENDED.search(last_line)
    code = shell_code(int(seen.group(1)) if seen else dvc_code)
    return code or BUG, f"{name}: {last_line.removeprefix('ERROR: ') or 'DVC ended without a message'}"
