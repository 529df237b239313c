"""The exception for errors that a user can correct, and the exit codes, by which a scheduler decides whether to retry."""

import re
from enum import IntEnum

# Name and password before the host of an address. SQLAlchemy allows a slash in a password. The name in an address of ssh is no secret.
_LOGIN = re.compile(r"(?<=://)(?<!ssh://)(?:[^/?#\s]*@|[^/\s@:]*:(?!\d+/)\S*?@)")


class ExitCode(IntEnum):
    """Exit codes of ``python -m flows.stages.X`` and ``transformer-core`` (names after sysexits.h)."""

    DONE = 0
    BAD_DATA = 65
    UNAVAILABLE = 69
    INTERRUPTED = 75
    BAD_CONFIGURATION = 78


class UserError(Exception):
    """An error that the user can correct: one line on standard error, without a traceback. It has no passwords of addresses.

    Args:
        message: the fault, preceded by its place (file, line or setting).
        remedy: the correction, a sentence; may be empty.
        exit_code: exit code of the process.
    """

    def __init__(self, message: str, remedy: str = "", exit_code: ExitCode = ExitCode.BAD_DATA) -> None:
        self.message = without_logins(message)
        self.remedy = without_logins(remedy)
        super().__init__(self.message, self.remedy, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        if not self.remedy:
            return self.message
        return f"{self.message.rstrip('.')}. {self.remedy}"


def configuration_error(message: str, remedy: str = "") -> UserError:
    """Return a `UserError` about settings: exit code 78, which no scheduler retries."""
    return UserError(message, remedy, ExitCode.BAD_CONFIGURATION)


class Interrupted(KeyboardInterrupt):
    """The process was asked to stop: exit code 75. The message names the saved state, from which the next run continues.

    Not an `Exception`, so a retry loop does not catch it.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters; the type's name if it is empty.

    Addresses are without logins: MLflow's messages have the address of its server as it was set.
    """
    return without_logins(str(error).strip().split("\n")[0])[:200] or type(error).__name__


def without_logins(text: str) -> str:
    """Return a text whose addresses have no name and password, to be printed or stored: http://host instead of http://me:secret@host."""
    return _LOGIN.sub("", text)
