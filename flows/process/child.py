"""A command as a child process: its output, its time limit, and the end of all processes that it started."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flows.process.exits import shell_code
from flows.process.runner import STARTERS
from flows.process.signals import GRACE, grace_seconds, without_stop_signals


def run_child(
    command: Sequence[str],
    on_line: Callable[[str], None] | None,
    limit_seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> int:
    """Run a command until all its processes have ended, and return its exit code, 128 plus the signal for a signal.

    The child is the leader of a process group in this session, so one signal reaches all that it starts, also those whose parent has died.
    Standard output and error are one stream, passed on line by line; of a line redrawn with carriage returns, only the last drawing is
    passed on. Without `on_line` both are this process's. `environment` is added to the inherited one; `directory` is the working directory.

    If an exception is raised here (by a signal handler, the time limit or `on_line`), the group gets SIGTERM and `grace_seconds` to save,
    while its lines are still passed on; then the rest is killed, and the exception propagates. Until then stop signals are ignored.
    `subprocess.TimeoutExpired`: the command ran for `limit_seconds`.
    """
    seconds = grace_seconds()
    inherited = {**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"}
    # A child has less time for children of its own, so that it ends before it is killed itself.
    inherited |= {GRACE: f"{0.9 * seconds:g}", STARTERS: f"{os.environ.get(STARTERS, '')} {os.getpid()}"}
    out, err = (subprocess.PIPE, subprocess.STDOUT) if on_line else (None, None)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=inherited, cwd=directory, process_group=0
    ) as child:
        pass_on = _OutputReader(child, on_line).pass_on if on_line else lambda _: True
        try:
            if not pass_on(limit_seconds):
                raise subprocess.TimeoutExpired(command, limit_seconds or 0)
            return shell_code(child.wait())
        except BaseException:
            with without_stop_signals(), suppress(subprocess.TimeoutExpired):
                try:
                    _signal(child.pid, signal.SIGTERM)
                    if pass_on(seconds):
                        child.wait(seconds)
                finally:
                    _signal(child.pid, signal.SIGKILL)
            raise


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # All its processes have ended.
        os.killpg(group, number)


class _OutputReader:
    """The output of a child, passed on line by line while any process holds the write end of the pipe."""

    def __init__(self, child: "subprocess.Popen[bytes]", on_line: Callable[[str], None]) -> None:
        assert child.stdout is not None
        self._pipe, self._on_line, self._rest = child.stdout.fileno(), on_line, b""

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
