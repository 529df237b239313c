"""The process of a stage: its lock, its signals, its exit code, the file that tells a scheduler how it ended, the time it took."""

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TextIO

import psutil

from flows.process.paths import STATE
from transformer_core.config import Params, load_params
from transformer_core.errors import ExitCode, Interrupted, UserError
from transformer_core.files import exclusive_lock, read_json, write_json

BUG = 1
SIGNALLED = 128  # plus the number of a signal: the exit code that shells give a process that the signal ended
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STARTER = "TRANSFORMER_STARTER"  # in the environment: the process that called `run_child`
_SHELLS = frozenset({"sh", "dash", "bash", "zsh", "fish", "ksh"})
_PR_SET_PDEATHSIG = 1
_WATCH_SECONDS = 0.5

Arguments = ParamSpec("Arguments")


class StageError(Exception):
    """A stage, or DVC or git on its behalf, ended with `exit_code`; the message says why."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(f"{message} (exit code {exit_code})")
        self.exit_code = exit_code


def reports_errors(main: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Decorator of a command's main function: print an error of the user or of a stage as one line, and return its exit code."""

    @wraps(main)
    def wrapped(*positional: Arguments.args, **named: Arguments.kwargs) -> int:
        try:
            return main(*positional, **named)
        except Interrupted as error:
            print(f"{error}. Run it again to go on.", file=sys.stderr)
            return ExitCode.INTERRUPTED
        except (UserError, StageError) as error:
            print(error, file=sys.stderr)
            return error.exit_code

    return wrapped


def run_stage(name: str, body: Callable[[Params], str]) -> int:
    """Run a stage and return the exit code of its process.

    SIGTERM, SIGINT, SIGUSR1 and the death of the process that started it (`exit_with_parent`) raise `Interrupted` in `body` at the first
    signal; later ones are ignored during clean-up. A stage that has a state to save (train) installs its own handlers with
    `signal.signal` inside `body` and raises `Interrupted` itself once it has saved; nothing here puts the handlers back.

    At its end `.state/exit/NAME.json` holds {code, message, remedy}. The file is absent while the stage runs, and remains absent
    only where the process was killed outright. If the stage is already running in this repository, this process ends with 69: the other
    one ends by itself (often it is saving after a stop), so a retry is right.
    """
    report = exit_file(name)
    try:
        report.unlink(missing_ok=True)
        stop_on_signals()
        exit_with_parent("DVC_STAGE" in os.environ)
        with exclusive_lock(STATE / "locks" / name, f"stage {name}"):
            closing = _run_body(name, body)
    except (UserError, Interrupted) as error:
        if isinstance(error, Interrupted):
            error = UserError(str(error) or f"{name}: interrupted", "Run it again to go on.", ExitCode.INTERRUPTED)
        report_exit(report, error.exit_code, error.message, error.remedy)
        echo(str(error), sys.stderr)
        return error.exit_code
    except BaseException as error:
        report_exit(report, BUG, f"{name}: {type(error).__name__}: {error}", "The traceback is in the log.")
        traceback.print_exc()
        return BUG
    report_exit(report, ExitCode.DONE, closing)
    echo(closing, sys.stdout)
    return ExitCode.DONE


def _run_body(name: str, body: Callable[[Params], str]) -> str:
    from transformer_core.presets import resolve  # Here: stages that build no model do not depend on this code.

    try:
        params = load_params()
        resolve(params.model)  # Sizes that cannot be built are refused before the first stage has cost anything.
        began = time.monotonic()
        closing = body(params)
    finally:
        _ignore_stop_signals()  # The report of the exit must be written.
    record_seconds(name, params, time.monotonic() - began)
    return closing


def exit_file(name: str, root: Path = Path()) -> Path:
    """The file in which stage `name` of the repository at `root` reports its exit."""
    return root / STATE / "exit" / f"{name}.json"


def report_exit(path: Path, code: int, message: str, remedy: str = "") -> None:
    """Write the report of an exit."""
    write_json(path, {"code": int(code), "message": message, "remedy": remedy})


def record_seconds(stage: str, params: Params, seconds: float) -> None:
    """Keep the duration of a stage that has succeeded, with its settings, in `.state/times/STAGE.json`: an output of DVC must not vary."""
    write_json(_times_file(stage), {"seconds": round(seconds, 1), "settings": _settings(stage, params)})


def seconds_of(stage: str, params: Params) -> float | None:
    """The duration of a stage's last run here, if that had the same settings, its own and those of the stages before.

    None means that DVC took its outputs from the cache.
    """
    file = _times_file(stage)
    record = read_json(file) if file.exists() else {"settings": None}
    return record["seconds"] if record["settings"] == _settings(stage, params) else None


def _times_file(stage: str) -> Path:
    return STATE / "times" / f"{stage}.json"


def _settings(stage: str, params: Params) -> dict[str, Any]:
    """The sections of params.yaml up to the stage's own; they are in the order of the stages."""
    sections = params.model_dump(mode="json")
    before = takewhile(lambda name: name != stage, sections)
    return {name: sections[name] for name in (*before, stage) if name in sections}


def echo(line: str, stream: TextIO) -> None:
    """Print a line. If the stream is broken (a dead `tee`, a full disk), this and all later output is discarded.

    A result must not be lost because its log cannot be written; and Python, which flushes once more at exit, would exit with 120.
    """
    try:
        print(line, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def stop_on_signals() -> None:
    """From now on raise `Interrupted` in the main thread at the first stop signal, and ignore later ones."""

    def stop(number: int, _frame: FrameType | None) -> None:
        _ignore_stop_signals()
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    for number in STOP_SIGNALS:
        signal.signal(number, stop)


def _ignore_stop_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def shell_code(code: int) -> int:
    """The exit code that a shell gives a process: 128 plus the signal that ended it, where Python has minus the signal."""
    return code if code >= 0 else SIGNALLED - code


def exit_with_parent(parent: bool) -> None:
    """Send this process SIGTERM when a process that started it dies: its parent, if asked for, and the caller of `run_child` above it.

    The kernel's parent-death signal is immediate, but it exists on Linux alone and knows only the parent, which below dvc may be a
    shell. A thread that polls twice a second looks past shells.
    """
    followed: list[psutil.Process | None] = []
    if parent:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        followed.append(next((one for one in psutil.Process().parents() if one.name() not in _SHELLS), None))
    if STARTER in os.environ:
        followed.append(_process(int(os.environ[STARTER])))
    if followed:
        threading.Thread(target=_watch, args=(followed,), name="exit-with-parent", daemon=True).start()


def _process(number: int) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(number)
    return None


def _watch(followed: Sequence[psutil.Process | None]) -> None:
    with suppress(psutil.NoSuchProcess):  # It may end between the two questions.
        while all(one is not None and one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in followed):
            time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
