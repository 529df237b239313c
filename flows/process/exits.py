"""The exit codes of stages and commands: which are tried again, and which counts where processes fail together.

docs/commands.md says what each means. Tries end with success or with patience; a training that has saved a later state has new patience.
"""

import signal
from collections.abc import Iterable

from transformer_core.errors import ExitCode

SIGNALLED = 128  # Plus the number of a signal: the exit code that shells give a process that the signal ended.
BUG = 1
KILLED, TERMINATED, BUS_ERROR = (SIGNALLED + number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGBUS))
# A later try may succeed without a person. SIGKILL: memory ran out, or the time to save was over. SIGBUS: storage failed under a
# memory-mapped file, or /dev/shm is full.
TRANSIENT = frozenset({ExitCode.UNAVAILABLE, ExitCode.INTERRUPTED, KILLED, TERMINATED, BUS_ERROR})
_CAUSES = (ExitCode.BAD_CONFIGURATION, ExitCode.BAD_DATA, KILLED, BUS_ERROR, BUG)


def shell_code(code: int) -> int:
    """Convert Python's exit code of a process, minus the signal that ended it, to a shell's, 128 plus the signal."""
    return code if code >= 0 else SIGNALLED - code


def in_words(code: int) -> str:
    """Return how a process ended: by a signal or with an exit code."""
    return f"ended by {signal.Signals(code - SIGNALLED).name}" if code - SIGNALLED in {*map(int, signal.Signals)} else f"exit code {code}"


def deciding(codes: Iterable[int]) -> int:
    """Return the code that counts for processes that fail together: the others fail because of that one.

    Wrong settings or data are permanent. A process that was killed, as when memory runs out, breaks connections, and others may end with a
    traceback; a bug ends others with a lost connection; who starts them ends the rest with SIGTERM.
    """
    failed = {*codes}
    return next((code for code in _CAUSES if code in failed), max(failed - {TERMINATED} or failed))
