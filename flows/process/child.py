"""A command as a child process: its output, its time limit, and the end of all processes that it started; git's commands."""

import os
import selectors
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from flows.process.exits import shell_code
from flows.process.runner import STARTERS
from flows.process.signals import delayed_stop_signals
from transformer_core.config import Machine, load_params
from transformer_core.errors import UserError, git_missing

# Environment variable: the seconds that a scheduler leaves between a stop and the kill.
GRACE = "TRANSFORMER_GRACE_SECONDS"
_TAG = "TRANSFORMER_CHILD"
_POLL_SECONDS = 0.1
_SURVIVOR_SECONDS = 5.0


class TimeLimitError(Exception):
    """The command exceeded its time limit; all its processes have been ended."""


def run_child(
    command: Sequence[str],
    on_line: Callable[[str], None],
    limit_seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> int:
    """Run a command until all its processes have ended, and return its exit code, 128 plus the signal for a signal.

    The child stays in this session and process group, so that a signal to the group (a cancel by Prefect's worker, Ctrl-C in a terminal)
    reaches it too. Standard output and error are one stream, passed on line by line; of a line redrawn with carriage returns, only the
    last drawing is passed on. `environment` is added to the inherited one; `directory` is the working directory.

    If an exception is raised here (by a signal handler, the time limit or `on_line`), all processes of the child get SIGTERM and
    `grace_seconds` to save, while `on_line` still receives their lines; then the rest are killed, and the exception propagates. Further
    stop signals wait until then.

    Raises:
        TimeLimitError: the command ran for `limit_seconds`.
    """
    tag, seconds = uuid.uuid4().hex, grace_seconds()
    inherited = {**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"}
    inherited |= {_TAG: os.environ.get(_TAG, "") + tag, STARTERS: f"{os.environ.get(STARTERS, '')} {os.getpid()}"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=inherited, cwd=directory
    ) as child:
        lines = _OutputReader(child, on_line)
        try:
            if not lines.pass_on(limit_seconds):
                raise TimeLimitError(f"{command[0]}: ended after the time limit of {limit_seconds:,.0f} seconds")
            return shell_code(child.wait())
        except BaseException:
            with delayed_stop_signals():
                try:
                    _terminate(tag, lines, seconds)
                finally:
                    _kill(tag)
            raise


def without_starters() -> dict[str, str]:
    """Return this process's environment for one that outlives it, perhaps on another machine."""
    return {name: value for name, value in os.environ.items() if name not in (_TAG, STARTERS)}


def grace_seconds() -> float:
    """Return the time that children have to save: $TRANSFORMER_GRACE_SECONDS, else `machine.grace_seconds`."""
    with suppress(ValueError):
        return float(os.environ.get(GRACE, ""))
    with suppress(OSError, UserError):
        return load_params().machine.grace_seconds
    return Machine().grace_seconds


def git(folder: Path, *arguments: str, **variables: str) -> str:
    """Return the output of a git command, run with these variables. Raises `CalledProcessError`; `UserError` (69), git is not installed."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", **variables}
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
    except FileNotFoundError:
        raise git_missing() from None


def _terminate(tag: str, lines: "_OutputReader", seconds: float) -> None:
    """Send SIGTERM to all processes with the tag, also to those that start meanwhile, and wait `seconds` at most for their end."""
    deadline, signalled = time.monotonic() + seconds, set[psutil.Process]()
    while (left := set(_tagged(tag))) and time.monotonic() < deadline:
        _signal(left - signalled, signal.SIGTERM)
        signalled |= left
        if lines.pass_on(_POLL_SECONDS):
            time.sleep(_POLL_SECONDS)
    lines.pass_on(_POLL_SECONDS)


def _kill(tag: str) -> None:
    """Kill all processes with the tag, repeatedly, because a process may start another during the search."""
    deadline = time.monotonic() + _SURVIVOR_SECONDS
    while (left := _tagged(tag)) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _tagged(tag: str) -> list[psutil.Process]:
    """Return the child and all processes that it started, by the tag that they inherit in their environment.

    A search by parent would miss a process whose parent was killed (a stage whose dvc has died).
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # Processes of other users, and processes that end during the search.
            if tag in process.environ().get(_TAG, "") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class _OutputReader:
    """The output of a child, passed on line by line while any process holds the write end of the pipe."""

    def __init__(self, child: "subprocess.Popen[bytes]", on_line: Callable[[str], None]) -> None:
        assert child.stdout is not None
        self._pipe = child.stdout.fileno()
        self._on_line = on_line
        self._rest = b""

    def pass_on(self, seconds: float | None) -> bool:
        """Pass lines on until the output ends (return True) or the seconds are over (return False)."""
        deadline = None if seconds is None else time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while deadline is None or deadline > time.monotonic():
                if not selector.select(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    continue
                block = os.read(self._pipe, 65536)
                if not block:
                    self._pass_on_lines(b"\n" if self._rest else b"")
                    return True
                self._pass_on_lines(block)
        return False

    def _pass_on_lines(self, block: bytes) -> None:
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            last_drawing = line.rstrip(b"\r").rpartition(b"\r")[2]
            self._on_line(last_drawing.decode(errors="replace"))
