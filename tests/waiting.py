"""Polling instead of sleeping."""

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

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
