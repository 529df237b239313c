"""One command as a child process with everything it starts: its lines, its time limit, and an end that leaves nobody behind."""

import os
import selectors
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from flows.process.runner import STARTER

GRACE_SECONDS = 60.0
_MARK = "TRANSFORMER_CHILD"
_POLL_SECONDS = 0.1
_SURVIVOR_SECONDS = 5.0


class TimeLimitError(Exception):
    """The command ran longer than it may; all of it has been ended."""


def run_child(
    command: Sequence[str],
    on_line: Callable[[str], None],
    limit_seconds: float | None = None,
    grace_seconds: float = GRACE_SECONDS,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> int:
    """Run a command to the end of everything it started and return its exit code (negative: the signal that ended it).

    The child stays in this session and process group, so a signal to the group (a cancel by Prefect's worker, Ctrl-C in a terminal)
    reaches it too. Standard error and output arrive as one stream, a line at a time; of a line redrawn with carriage returns only the
    last drawing is passed on. `environment` is added to the inherited one; `directory` is where the command runs.

    When anything is raised here (a signal handler, the time limit, `on_line`), every process of the child gets SIGTERM, has
    `grace_seconds` to save, still heard by `on_line`, and is killed if it is there after that; then the exception goes on.

    Raises:
        TimeLimitError: the command ran for `limit_seconds`.
    """
    mark = uuid.uuid4().hex
    inherited = {**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"}
    inherited |= {_MARK: os.environ.get(_MARK, "") + mark, STARTER: str(os.getpid())}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=inherited, cwd=directory
    ) as child:
        lines = _Lines(child, on_line)
        with _nobody_left(mark, lines, grace_seconds):
            if not lines.pass_on(limit_seconds):
                raise TimeLimitError(f"{command[0]}: ended after the time limit of {limit_seconds:,.0f} seconds")
            return child.wait()


def terminate_children() -> None:
    """Send SIGTERM to everything that calls of `run_child` in other threads have started; those calls then return its exit code."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):  # It may have ended.
            if _MARK in process.environ():
                process.terminate()


@contextmanager
def _nobody_left(mark: str, lines: "_Lines", grace_seconds: float) -> Iterator[None]:
    try:
        yield
    except BaseException:
        deadline = time.monotonic() + grace_seconds
        try:
            _signal(_family(mark), signal.SIGTERM)
            lines.pass_on(grace_seconds)
            while _family(mark) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        finally:
            _kill(mark)
        raise


def _kill(mark: str) -> None:
    """Kill until nobody is left; more than once, because a process may start another while it is looked for."""
    deadline = time.monotonic() + _SURVIVOR_SECONDS
    while (family := _family(mark)) and time.monotonic() < deadline:
        _signal(family, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _family(mark: str) -> list[psutil.Process]:
    """The child and all it started, found by the mark they inherit in their environment.

    Not by parent and child: whoever outlives its parent (a stage whose dvc was killed) has lost that tie, and it is the one to wait for.
    """
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # Others' processes, and those that end while they are looked at.
            if mark in process.environ().get(_MARK, "") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class _Lines:
    """The output of a child, passed on line by line as long as somebody holds its end of the pipe."""

    def __init__(self, child: "subprocess.Popen[bytes]", on_line: Callable[[str], None]) -> None:
        assert child.stdout is not None
        self._pipe = child.stdout.fileno()
        self._on_line = on_line
        self._rest = b""

    def pass_on(self, seconds: float | None) -> bool:
        """Pass lines on to the end of the output (True) or for so many seconds (False)."""
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
