"""The exit codes of stages and commands: what each means, and whether the flow or a scheduler runs the command again.

What runs again does so until it succeeds or its patience is over; a training that has saved a later state meanwhile has new patience.
"""

import signal
from collections.abc import Iterable
from typing import NamedTuple

from transformer_core.errors import ExitCode

SIGNALLED = 128  # Plus the number of a signal: the exit code that shells give a process that the signal ended.
BUG = 1
DVC_FAILED = 255
KILLED, TERMINATED = SIGNALLED + signal.SIGKILL, SIGNALLED + signal.SIGTERM


class Exit(NamedTuple):
    """What an exit code means, and whether a later try may succeed without a person."""

    meaning: str
    transient: bool


CODES = {
    int(ExitCode.DONE): Exit("done", False),
    BUG: Exit("a bug: the traceback is in the log", False),
    int(ExitCode.BAD_DATA): Exit("the data are wrong or damaged", False),
    int(ExitCode.UNAVAILABLE): Exit("a service, a GPU or storage has failed, or another process does the same", True),
    int(ExitCode.INTERRUPTED): Exit("stopped; the next run goes on from the saved state", True),
    int(ExitCode.BAD_CONFIGURATION): Exit("the settings are wrong, or this machine is too small for them", False),
    SIGNALLED + signal.SIGINT: Exit("Ctrl-C before the stage could save", False),
    SIGNALLED + signal.SIGBUS: Exit("SIGBUS: storage failed under a memory-mapped file, or /dev/shm is full", True),
    KILLED: Exit("SIGKILL: memory ran out, or the time to save was over", True),
    TERMINATED: Exit("SIGTERM before the stage could save", True),
    DVC_FAILED: Exit("DVC failed; the report in .state/exit has the code of the stage", False),
}
_CAUSES = (int(ExitCode.BAD_CONFIGURATION), int(ExitCode.BAD_DATA), KILLED, SIGNALLED + signal.SIGBUS, BUG)
TRANSIENT = frozenset(code for code, known in CODES.items() if known.transient)


def shell_code(code: int) -> int:
    """Convert Python's exit code of a process, minus the signal that ended it, to a shell's, 128 plus the signal."""
    return code if code >= 0 else SIGNALLED - code


def in_words(code: int) -> str:
    """Return how a process ended: by a signal or with an exit code."""
    return f"ended by {signal.Signals(code - SIGNALLED).name}" if SIGNALLED < code < DVC_FAILED else f"exit code {code}"


def deciding(codes: Iterable[int]) -> int:
    """Return the code that counts for processes that fail together: the others fail because of that one.

    Wrong settings or data are permanent. A process that was killed, as when memory runs out, breaks connections, and others may end with a
    traceback; a bug ends others with a lost connection; who starts them ends the rest with SIGTERM.
    """
    failed = {*codes}
    return next((code for code in _CAUSES if code in failed), max(failed - {TERMINATED} or failed))
