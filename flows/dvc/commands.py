"""DVC: the order of the stages, its commands, and the reason of a failure."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import psutil

from flows.process.exits import BUG, shell_code
from flows.process.paths import DVC_LOCK
from flows.process.runner import exit_file
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line
from transformer_core.files import read_json

DVC_FILE = ".dvc"
_WRITING_SECONDS = 0.5
_ADVICE = {
    "Updating lock file 'dvc.lock'",
    "To track the changes with git, run:",
    "git add dvc.lock",
    "To enable auto staging, run:",
    "dvc config core.autostage true",
    "Use `dvc push` to send your updates to remote storage.",
    "Data and pipelines are up to date.",
}
_COMMAND = "> exec sh "  # Begins DVC's line with the command of a stage.
# The end of DVC's message where a stage of another DVC command is running, for which `--wait-for-lock` does not wait.
_STAGE_BUSY = re.compile(r"you can manually remove '.*rwlock' and try again\.$")
_STAGE_FAILED = re.compile(r"failed to reproduce '([^']+)'")  # The message of dvc.exceptions.ReproductionError.
_STAGE_ENDED = re.compile(r"exited with (-?\d+)$")  # The message of dvc.stage.exceptions.StageCmdFailedError.


def stage_names() -> list[str]:
    """Return the stages of the DVC repository in the working directory, in an order in which they can run.

    Raises `UserError` (78): no repository, or its dvc.yaml is invalid.
    """
    return [name for name in TopologicalSorter(_needed(Path())).static_order() if not name.endswith(DVC_FILE)]


def ancestors(name: str, root: Path = Path()) -> list[str]:
    """Return the stages, and the .dvc files of `dvc add`, that a stage depends on, directly or not, in an order in which they can run.

    Raises `UserError`: as `stage_names`, or no such stage.
    """
    needed = _needed(root)
    if name not in needed:
        raise configuration_error(f"no stage is called {name!r}", f"Stages: {', '.join(needed)}.")
    order, found = list(TopologicalSorter(needed).static_order()), {name}
    for stage in reversed(order):  # A stage comes after all that it needs.
        if stage in found:
            found.update(needed[stage])
    return [stage for stage in order if stage in found - {name}]


def _needed(root: Path) -> dict[str, list[str]]:
    from dvc.exceptions import DvcException  # type: ignore[import-untyped]  # Here, because importing DVC starts a thread.
    from dvc.repo import Repo  # type: ignore[import-untyped]

    repair(root)
    try:
        with Repo(str(root)) as repo:
            graph = repo.index.graph
            # A .dvc file holds one stage, without a name.
            names = {stage: stage.name if stage.cmd else Path(stage.path).relative_to(repo.root_dir).as_posix() for stage in graph}
            return {name: [names[other] for other in graph.successors(stage)] for stage, name in names.items()}
    except DvcException as error:
        raise configuration_error(first_line(error), "Run this at the top of the repository; check it with: dvc status") from None


def dvc(*arguments: str) -> list[str]:
    """Return a command line of DVC that waits while another DVC command has the repository's lock, but not while that runs a stage."""
    return [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]


def repair(root: Path = Path()) -> None:
    """Remove DVC's record of running commands if it is damaged or names no command that still runs, and dvc.lock if it is empty.

    DVC writes both in place, so a kill may leave an empty file. Every later command then ends with "Unable to read RWLock-file", or with
    "'dvc.lock' validation failed". DVC finds what dvc.lock had recorded in its run-cache. And it waits for ever for a command that was
    killed if another process has its number, as after a restart of the machine or in another container.
    """
    for file, is_damaged in ((root / ".dvc" / "tmp" / "rwlock", _is_stale), (root / DVC_LOCK, _is_empty)):
        # Looked at twice, because another DVC may be writing it.
        if is_damaged(file):
            time.sleep(_WRITING_SECONDS)
            if is_damaged(file):
                file.unlink(missing_ok=True)


def _is_stale(file: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            entries = list(_entries(read_json(file)))
        except (UserError, AttributeError, TypeError):
            return True
        return bool(entries) and not any(map(_is_running, entries))
    return False


def _entries(record: Any) -> Iterator[Any]:
    """Yield the commands in DVC's record, each with its process: the writer of each path, and the readers of each path."""
    yield from record.get("write", {}).values()
    for readers in record.get("read", {}).values():
        yield from readers


def _is_running(entry: Any) -> bool:
    """Return whether the process of a command runs that command. DVC records the name of the program as Python has it, then arguments."""
    try:
        command = " ".join(psutil.Process(entry["pid"]).cmdline())
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # Of another user.
        return True
    return command.endswith(" ".join(entry["cmd"].split()[1:]))


def _is_empty(file: Path) -> bool:
    with suppress(FileNotFoundError):
        return not file.stat().st_size
    return False


def without_advice(write: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that writes a line, unless DVC prints it for each stage: what to type next, and the command of the stage."""
    return lambda line: None if line.strip() in _ADVICE or line.startswith(_COMMAND) else write(line)


def search_path() -> str:
    """Return $PATH for DVC, in which `python` is this interpreter."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def failed_stage(last_line: str) -> str | None:
    """Return the stage that the last line of `dvc repro` names as failed, or None."""
    found = _STAGE_FAILED.search(last_line)
    return found and found[1]


def failure(name: str, dvc_code: int, last_line: str, root: Path = Path()) -> tuple[int, str]:
    """Return exit code and reason of a failed stage: from its own report or, if that is missing or damaged, from DVC."""
    if _STAGE_BUSY.search(last_line):
        return ExitCode.UNAVAILABLE, f"{name}: another DVC command runs a stage in this repository. Wait until it ends, then run again."
    with suppress(OSError, UserError, KeyError, TypeError, ValueError, OverflowError):
        found = read_json(exit_file(name, root))
        reason = str(UserError(str(found["message"]), str(found["remedy"])))
        if code := int(found["code"]):  # Otherwise DVC failed after the stage.
            return code, reason if reason.startswith(f"{name}:") else f"{name}: {reason}"
    seen = _STAGE_ENDED.search(last_line)
    code = shell_code(int(seen.group(1)) if seen else dvc_code)
    return code or BUG, f"{name}: {last_line.removeprefix('ERROR: ') or 'DVC ended without a message'}"
