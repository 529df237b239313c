"""How a stage runs: its lock, its signals, its exit code, and the file that tells a scheduler how it ended."""

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

import psutil

from flows.process.paths import STATE
from flows.process.times import record_seconds
from transformer_core.config import Params, load_params
from transformer_core.errors import ExitCode, Interrupted, UserError
from transformer_core.files import only_one, write_json

BUG = 1
ENDED_BY = 128  # and the number of a signal: how shells say that it ended a process
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SHELLS = frozenset({"sh", "dash", "bash", "zsh", "fish", "ksh"})
_PR_SET_PDEATHSIG = 1
_WATCH_SECONDS = 0.5
STARTER = "TRANSFORMER_STARTER"  # in the environment: the process that called `run_child`


def run_stage(name: str, body: Callable[[Params], str]) -> int:
    """Run a stage and return the exit code of its process.

    SIGTERM, SIGINT, SIGUSR1 and the death of what started it (`follow_starters`) raise `Interrupted` in `body` at the first signal;
    later ones are ignored while it cleans up. A stage that has something to save (train) installs its own handlers with
    `signal.signal` inside `body` and raises `Interrupted` itself once it has saved; nothing here puts the handlers back.

    However it ends, `.state/exit/NAME.json` then holds {code, message, remedy}; it is absent while the stage runs, and stays absent
    only where the process was killed outright. A stage that runs elsewhere in this repository ends this one with 75: the other one
    ends by itself (often it is saving after a stop), so trying again later is right.
    """
    ended = exit_file(name)
    try:
        ended.unlink(missing_ok=True)
        stop_on_signals()
        follow_starters("DVC_STAGE" in os.environ)
        with only_one(STATE / "locks" / name, f"stage {name}"):
            closing = _to_its_end(name, body)
    except (UserError, Interrupted) as error:
        return _report(ended, name, error)
    except BaseException as error:
        write_json(ended, {"code": BUG, "message": f"{name}: {type(error).__name__}: {error}", "remedy": "The traceback is in the log."})
        traceback.print_exc()
        return BUG
    write_json(ended, {"code": int(ExitCode.DONE), "message": closing, "remedy": ""})
    say(closing, sys.stdout)
    return ExitCode.DONE


def exit_file(name: str, root: Path = Path()) -> Path:
    """Where the stage `name` of the repository at `root` says how it ended."""
    return root / STATE / "exit" / f"{name}.json"


def _to_its_end(name: str, body: Callable[[Params], str]) -> str:
    from transformer_core.presets import resolve  # Here, for a stage that builds no model does not depend on this code.

    try:
        params = load_params()
        resolve(params.model)  # Sizes that cannot be built are refused before the first stage has cost anything.
        began = time.monotonic()
        closing = body(params)
    finally:
        _ignore_stop_signals()  # The end is near and must be written down.
    record_seconds(name, params, time.monotonic() - began)
    return closing


def _report(ended: Path, name: str, error: UserError | Interrupted) -> int:
    if isinstance(error, Interrupted):
        error = UserError(str(error) or f"{name}: interrupted", "Run it again to go on.", ExitCode.INTERRUPTED)
    write_json(ended, {"code": int(error.exit_code), "message": error.message, "remedy": error.remedy})
    say(str(error), sys.stderr)
    return error.exit_code


def say(line: str, stream: TextIO) -> None:
    """Print a line. Where nobody can read it any more (a dead `tee`, a full disk) it and all after it go nowhere.

    What is computed must not be lost for want of a reader; and Python, which flushes once more at its end, would exit with 120.
    """
    try:
        print(line, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def stop_on_signals() -> None:
    """From now on raise `Interrupted` in the main thread at the first signal to stop, and ignore those after it."""

    def stop(number: int, _frame: FrameType | None) -> None:
        _ignore_stop_signals()
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    for number in STOP_SIGNALS:
        signal.signal(number, stop)


def _ignore_stop_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def shell_code(code: int) -> int:
    """A process's exit code as shells say it: 128 and the signal that ended it, where Python says minus the signal."""
    return code if code >= 0 else ENDED_BY - code


def follow_starters(parent: bool) -> None:
    """Send this process SIGTERM when one that started it dies: its parent, if asked for, and the caller of `run_child` above it.

    The kernel's parent-death signal is immediate but knows the parent alone, which for a stage of dvc is the shell where that did not
    replace itself by the command, and it exists on Linux alone. The watch, half a second later, looks past shells.
    """
    followed: list[psutil.Process | None] = []
    if parent:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        followed.append(next((one for one in psutil.Process().parents() if one.name() not in _SHELLS), None))
    if STARTER in os.environ:
        followed.append(_process(int(os.environ[STARTER])))
    if followed:
        threading.Thread(target=_watch, args=(followed,), name="follow", daemon=True).start()


def _process(number: int) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(number)
    return None


def _watch(followed: Sequence[psutil.Process | None]) -> None:
    with suppress(psutil.NoSuchProcess):  # It may go between the two questions.
        while all(one is not None and one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in followed):
            time.sleep(_WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
