"""The signals that ask a process to stop, and the time that it has to save."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from transformer_core.config import Machine, load_params
from transformer_core.errors import Interrupted, UserError

# SIGHUP: the terminal was closed. SIGUSR1: a scheduler's warning before the end of the time.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
# Environment variable: the seconds that a scheduler leaves between a stop and the kill.
GRACE = "TRANSFORMER_GRACE_SECONDS"


def grace_seconds() -> float:
    """Return the time that children have to save: $TRANSFORMER_GRACE_SECONDS, else `machine.grace_seconds`."""
    with suppress(ValueError):
        return float(os.environ.get(GRACE, ""))
    with suppress(OSError, UserError):
        return load_params().machine.grace_seconds
    return Machine().grace_seconds


def stop_on_signals() -> None:
    """Install handlers that raise `Interrupted` in the main thread at the first stop signal and ignore later ones."""

    def stop(number: int, _frame: FrameType | None) -> None:
        ignore_stop_signals()
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    handle_stop_signals(stop)


def ignore_stop_signals() -> None:
    """Ignore further stop signals, so that a clean-up is not interrupted."""
    handle_stop_signals(signal.SIG_IGN)


def handle_stop_signals(handler: Callable[[int, FrameType | None], Any] | signal.Handlers) -> None:
    """Install a handler of the stop signals. SIGHUP stays ignored if it was at the start: that is what `nohup` is for."""
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def stop_flag() -> Callable[[], bool]:
    """Make the stop signals set a flag, which a training reads once an update, and return its reader. The first signal is answered."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        if not asked and os.environ.get("RANK", "0") == "0":
            with suppress(OSError):  # Not by `print`, which the signal may have interrupted. The line feed leaves a bar that is drawn.
                os.write(sys.stderr.fileno(), b"\n" * sys.stderr.isatty() + b"stopping after this update, then saving\n")
        asked.append(number)

    handle_stop_signals(ask)
    return lambda: bool(asked)


@contextmanager
def without_stop_signals() -> Iterator[None]:
    """Ignore stop signals in the block: in it, children save after a first one. Only the main thread answers signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler that Python did not install (None) could not be put back.
    before = {number: handler for number in STOP_SIGNALS if (handler := signal.getsignal(number)) is not None}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hold_stop_signals() -> None:
    """Let stop signals wait until `release_stop_signals`: an exception in the middle of an import would leave torch half loaded."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def release_stop_signals() -> None:
    """Deliver the stop signals that have waited, and those to come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
