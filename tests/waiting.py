"""Polling instead of sleeping, and the processes that are left."""

import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psutil

LONGEST_SECONDS = 400.0
Found = TypeVar("Found")


def wait_for(look: Callable[[], Found], what: str = "", pause: float = 0.05, process: "subprocess.Popen[Any] | None" = None) -> Found:
    """The first true value that `look` returns; fails after `LONGEST_SECONDS`, or if a process has ended before."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while not (found := look()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, what
        time.sleep(pause)
    return found


def processes(chosen: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """The running processes for which `chosen` is true."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # It has ended meanwhile, or is another user's.
            if process.status() != psutil.STATUS_ZOMBIE and chosen(process):
                found.append(process)
    return found


def runs_train(process: psutil.Process) -> bool:
    """Whether a process is that of stage train, or torchrun or a rank of it."""
    return process.cmdline()[-2:] == ["flows.stages", "train"]


def free_port() -> int:
    """A port of the loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
