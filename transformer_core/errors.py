"""The one exception a user meets, and the exit codes that tell a scheduler what to do next."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``python -m flows.stages.X`` and ``transformer-core`` (names after sysexits.h)."""

    DONE = 0
    BAD_DATA = 65
    UNAVAILABLE = 69
    INTERRUPTED = 75
    BAD_CONFIGURATION = 78


class UserError(Exception):
    """Something the user can mend: shown as one line on standard error, never as a traceback.

    Args:
        message: what is wrong and where (file, line or setting first).
        remedy: what to do about it; a sentence, or empty where the message says it.
        exit_code: what the process ends with.
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
    """A `UserError` about settings: exit code 78, which no scheduler retries."""
    return UserError(message, remedy, ExitCode.BAD_CONFIGURATION)


class Interrupted(KeyboardInterrupt):
    """The process was asked to stop: exit code 75. What was kept stands in the message; the next run goes on from there.

    Not an `Exception`, so that no retry loop around it takes a request to stop for a failure to try again after.
    """


def first_line(error: BaseException) -> str:
    """The first line, 200 characters at most, of what an error says: a message of MLflow can be a page long."""
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
