"""The exception for errors that a user can correct, and the exit codes, by which a scheduler decides whether to retry."""

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``python -m flows.stages.X`` and ``transformer-core`` (names after sysexits.h)."""

    DONE = 0
    BAD_DATA = 65
    UNAVAILABLE = 69
    INTERRUPTED = 75
    BAD_CONFIGURATION = 78


class UserError(Exception):
    """An error that the user can correct: one line on standard error, without a traceback.

    Args:
        message: the fault, preceded by its place (file, line or setting).
        remedy: the correction, a sentence; may be empty.
        exit_code: exit code of the process.
    """

    def __init__(self, message: str, remedy: str = "", exit_code: ExitCode = ExitCode.BAD_DATA) -> None:
        super().__init__(message, remedy, exit_code)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        if not self.remedy:
            return self.message
        return f"{self.message.rstrip('.')}. {self.remedy}"


def configuration_error(message: str, remedy: str = "") -> UserError:
    """Return a `UserError` about settings: exit code 78, which no scheduler retries."""
    return UserError(message, remedy, ExitCode.BAD_CONFIGURATION)


def did_you_mean(name: str, known: Iterable[str], otherwise: str, most: int = 3) -> str:
    """Return a remedy with at most `most` known names that are similar to a wrong one; if there are none, `otherwise`."""
    near = difflib.get_close_matches(name, known, n=most)
    return f"Did you mean {' or '.join(near)}?" if near else otherwise


class Interrupted(KeyboardInterrupt):
    """The process was asked to stop: exit code 75. The message names the saved state, from which the next run continues.

    Not an `Exception`, so a retry loop does not catch it.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters; the type's name if the message is empty."""
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
