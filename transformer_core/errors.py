"""The exception for errors that a user can correct, and the exit codes, by which a scheduler decides whether to retry."""

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum

_LONGEST_LINE = 2_000
# Name and password before the host of an address. SQLAlchemy allows a slash in a password. The name in an address of ssh is no secret.
_LOGIN = re.compile(r"(?<=://)(?<!ssh://)(?:[^/?#\s]*@|[^/\s@:]*:(?!\d+/)\S*?@)")
# A disk that is full, a quota that is used up, a disk that is read-only.
_DISK = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS)))
# Words in the messages of torch and numpy about a file that they could write only in part.
_WRITTEN_IN_PART = ("iostream error", "unexpected pos", "PytorchStreamWriter failed", " requested and ")
# Faults of a disk, of shared storage or of its network that may pass.
_STORAGE = {
    *(errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENODEV, errno.ENOLCK, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN),
    *(errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
}
# In messages of torch and safetensors; gloo's messages quote those of a network.
_STORAGE_WORDS = tuple(map(os.strerror, (errno.EIO, errno.ESTALE)))
# Errors of a path: a file where a folder is expected or the reverse, no permission, a name that is too long, a loop of links.
_PATH = (errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP)
# Begins the note about the file that was being written.
_WRITING = "writing "
# Words in the messages of torch, oneDNN, CUDA and CTranslate2; torch raises RuntimeError on a CPU, and a subclass of it on a GPU.
_NO_MEMORY = ("out of memory", "allocate memory", "enough memory", "bad_alloc", "ALLOC_FAILED")
# CUDA's messages about a GPU that has failed; torch, Triton and CTranslate2 quote them in a RuntimeError. A launch may also fail because a
# kernel is wrong; that fails again, and retries are few.
_GPU_FAULTS = (
    "unspecified launch failure",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "CUDA-capable device(s) is/are busy or unavailable",
    "CUDA-capable devices are busy or unavailable",
    "no CUDA-capable device",
    "CUDA error: unknown error",
    "fallen off the bus",
    "unhandled system error",  # NCCL's.
)
# Beyond it the memory of a GPU that torch has not allocated is that of other processes: CUDA itself and NCCL use less.
_OTHERS_GIB = 4


class ExitCode(IntEnum):
    """Exit codes of ``python -m flows.stages X`` and ``transformer-core`` (names after sysexits.h)."""

    DONE = 0
    BAD_DATA = 65
    UNAVAILABLE = 69
    INTERRUPTED = 75
    BAD_CONFIGURATION = 78


class UserError(Exception):
    """An error that the user can correct: one line on standard error, without a traceback. Passwords in addresses are removed.

    Args:
        message: the fault, preceded by its place (file, line or setting).
        remedy: the correction, a sentence; may be empty.
        exit_code: exit code of the process.

    Both texts may quote any file or argument, so they are kept as `for_terminal` returns them.
    """

    def __init__(self, message: str, remedy: str = "", exit_code: ExitCode = ExitCode.BAD_DATA) -> None:
        self.message = for_terminal(message)
        self.remedy = for_terminal(remedy)
        super().__init__(self.message, self.remedy, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        if not self.remedy:
            return self.message
        return f"{self.message.rstrip('.')}. {self.remedy}"


def for_terminal(text: str) -> str:
    """Return the text without passwords, with control characters escaped, and without the middle of very long lines."""
    lines, half = [], _LONGEST_LINE // 2
    for line in without_logins(text).split("\n"):
        printable = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)
        lines.append(printable if len(printable) <= _LONGEST_LINE else f"{printable[:half]}...{printable[-half:]}")
    return "\n".join(lines)


def configuration_error(message: str, remedy: str = "") -> UserError:
    """Return a `UserError` about settings: exit code 78, which no scheduler retries."""
    return UserError(message, remedy, ExitCode.BAD_CONFIGURATION)


def did_you_mean(name: str, names: Iterable[str], otherwise: str, most: int = 3) -> str:
    """Return a remedy with at most `most` of the names that are similar to a wrong one; if there are none, `otherwise`."""
    near = difflib.get_close_matches(name, names, n=most)
    return f"Did you mean {' or '.join(near)}?" if near else otherwise


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, of the machine or of a GPU."""
    if isinstance(error, RuntimeError):
        # A CUDA capture that runs out of memory ends with an error of its own, during the other.
        return any(words in str(part) for part in (error, error.__context__) for words in _NO_MEMORY)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def is_of_machine(error: Exception) -> bool:
    """Return whether an error that a reader raised is of this machine, such as a full disk, and not of the file."""
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def used_by_others(error: BaseException) -> str:
    """Return how much memory other processes use on a GPU that is out of memory; empty if that is little, or for another error."""
    if not any(words in str(error) for words in ("CUDA out of memory", "CUDA error")):
        return ""
    import torch  # Loaded already: the error is its own.

    if not torch.cuda.is_initialized():
        return ""
    named = re.search(r"GPU (\d+) has a total capacity", str(error))
    device = int(named[1]) if named else None
    free, total = torch.cuda.mem_get_info(device)
    others = (total - free - torch.cuda.memory_reserved(device)) / 2**30
    return f"other processes use {others:.0f} of {total / 2**30:.0f} GiB" if others > _OTHERS_GIB else ""


@contextmanager
def writing(path: str | os.PathLike[str], temporary: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Let errors of the block name the file that it writes, in place of a temporary name or a file in it.

    They get a note with it, because the system does not name a file that is open already.
    """
    try:
        yield
    except Exception as error:
        if temporary and isinstance(error, OSError) and isinstance(error.filename, str):
            error.filename = error.filename.replace(os.fspath(temporary), os.fspath(path), 1)
        error.add_note(f"{_WRITING}{os.fspath(path)}")
        raise


def disk_error(error: BaseException) -> str:
    """Return what an error says about a disk that is full or read-only, with the file if it is known; empty for other errors."""
    # torch and safetensors raise errors of their own types, which contain the system's message.
    fault = next((words for words in _DISK if words in str(error)), "")
    if not fault and isinstance(error, OSError | RuntimeError) and any(words in str(error) for words in _WRITTEN_IN_PART):
        fault = "written only in part"
    file = _file_of(error)
    return f"{fault}: {file}" if fault and file else fault


def _file_of(error: BaseException) -> str:
    """Return the file of an error, empty if it is unknown: where it was to be moved, else its own, else the one of a note."""
    notes = [note.removeprefix(_WRITING) for note in getattr(error, "__notes__", ()) if note.startswith(_WRITING)]
    return next((str(name) for name in (getattr(error, "filename2", None), getattr(error, "filename", None), *notes) if name), "")


@contextmanager
def machine_errors(where: str, memory_remedy: str) -> Iterator[None]:
    """Convert lack of memory, of disk space or of access to a path in the block to a `UserError` (78): a retry would fail, too.

    A GPU or a storage that has failed, or a GPU that is in use, is one with exit code 69: a later process may succeed, or one elsewhere.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            if others := used_by_others(error):
                remedy = "Run it again when they have ended, or use another GPU: nvidia-smi lists them."
                raise UserError(f"{where}: the GPU is out of memory: {others}", remedy, ExitCode.UNAVAILABLE) from None
            raise configuration_error(f"{where}: out of memory", memory_remedy) from None
        if isinstance(error, RuntimeError) and (fault := next((words for words in _GPU_FAULTS if words in str(error)), "")):
            remedy = "Run it again to resume. If that happens again, use another GPU: nvidia-smi -q names its errors."
            raise UserError(f"{where}: the GPU failed ({fault})", remedy, ExitCode.UNAVAILABLE) from None
        if fault := disk_error(error):
            raise configuration_error(f"{where}: {fault}", "Free space or permit writing, then run it again.") from None
        file, number = _file_of(error), error.errno if isinstance(error, OSError) else None
        if number in _STORAGE or (fault := next((words for words in _STORAGE_WORDS if words in str(error)), "")):
            said = ": ".join(filter(None, (where, file, os.strerror(number) if number else fault)))
            remedy = "Run it again to resume. If that happens again, check the disk, the shared folder or the network."
            raise UserError(said, remedy, ExitCode.UNAVAILABLE) from None
        if number in _PATH and file:
            raise configuration_error(f"{where}: {file}: {os.strerror(number)}", "Name another path, or change its permissions.") from None
        raise


class Interrupted(KeyboardInterrupt):
    """The process was asked to stop: exit code 75. The message names the saved state. No `Exception`: a retry loop does not catch it."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without logins, at most 200 characters; the type's name if it is empty."""
    return without_logins(str(error).strip().split("\n")[0])[:200] or type(error).__name__


def without_logins(text: str) -> str:
    """Return a text whose addresses have no name and password, to be printed or stored: http://host instead of http://me:secret@host."""
    return _LOGIN.sub("", text)
