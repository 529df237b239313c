"""Files: atomic writes (to a temporary name beside the target, then renamed), JSON, checksums, locks and the standard streams."""

import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from socket import gethostname
from typing import IO, Any, TextIO, cast
from uuid import uuid4

from transformer_core.errors import ExitCode, UserError, configuration_error, first_line, writing

# The variable in which DVC names the experiment to the stages that it runs.
DVC_EXPERIMENT = "DVC_EXP_NAME"
# Worktrees of runs with settings of their own, below their repository.
WORKTREES = Path(".state/worktrees")
_LOCK_SECONDS = 1.0
# Of a file system that locks no files. ENOLCK, of an NFS server in trouble, may pass.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def repository() -> Path:
    """Return the repository of this workspace: the working directory, or an absolute path in a worktree or an experiment's copy of it.

    Both are removed at the end. DVC names the repository of a copy (`dvc exp run --temp`, `dvc queue start`) in $DVC_ROOT.
    """
    if Path.cwd().match(f"{WORKTREES}/*"):
        return Path.cwd().parents[len(WORKTREES.parts)]
    root = Path(os.environ.get("DVC_ROOT", "")).absolute()
    return root if DVC_EXPERIMENT in os.environ and root != Path.cwd() else Path()


def state_folder() -> str:
    """Return the folder of saved trainings and records: $TRANSFORMER_STATE, else .state, also if that names a store (training/store.py)."""
    named = os.environ.get("TRANSFORMER_STATE", "")
    return ".state" if not named or "://" in named else named


def prepare_streams() -> None:
    """Open standard streams that are closed, and let standard output write any text and any name of a file, whatever the locale.

    In place of a closed standard error, `print` would write notes to standard output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(stream, True)
            setattr(sys, name, os.fdopen(stream, mode, encoding="utf-8"))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def discard(stream: TextIO) -> None:
    """Discard all later output of a stream that is broken. Python also flushes at exit, and would exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def flush_or_discard(stream: TextIO) -> None:
    """Flush a stream, or discard its content if that fails again: Python would try a last time at exit, and exit with 120."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path. If the block succeeds, the file is synced to disk and renamed to `path`; if it fails, it is removed.

    Leftovers for `path` of killed processes are removed first. Other processes may be writing it, also in other containers, where process
    ids mean nothing here: a writer holds a lock on its temporary file, and a leftover has none. The block must not replace that file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        with suppress(OSError), leftover.open("r+b") as file:  # Refused where a process holds its lock, or the file system has none.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid4().hex[:8]}.new")
    with writing(path, temporary):
        try:
            with temporary.open("x+b") as held:
                with suppress(OSError):  # Where no file can be locked, leftovers stay.
                    fcntl.flock(held, fcntl.LOCK_EX)
                yield temporary
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield an empty temporary directory. It replaces `path` if the block succeeds, and is removed if it fails. A link is replaced itself.

    Leftovers of killed processes are removed first, so only one process at a time may write `path`. A kill between the two renames leaves
    the old directory aside; the next call puts it back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = path.with_name(f".{path.name}.{os.getpid()}.new"), path.with_name(f".{path.name}.old")
    if os.path.lexists(old) and not os.path.lexists(path):
        old.replace(path)
    elif os.path.lexists(old):
        _remove(old)
    for leftover in path.parent.glob(f".{path.name}.*.new"):
        shutil.rmtree(leftover, ignore_errors=True)
    with writing(path, temporary):
        temporary.mkdir()
        try:
            yield temporary
            if os.path.lexists(path):
                path.replace(old)
            temporary.replace(path)
            if os.path.lexists(old):
                _remove(old)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove(directory: Path) -> None:
    """Remove a directory, or only the link to one."""
    if directory.is_symlink():
        directory.unlink()
    else:
        shutil.rmtree(directory)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, atomically."""
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, document: object) -> None:
    """Write a document as indented JSON, atomically."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, remedy: str = "Make it again.", missing: str | None = None) -> Any:
    """Return the document in a JSON file. Raises `UserError` (65) with this remedy: not valid JSON, or nested too deep.

    Of a file that is missing it raises one with the remedy `missing`; without that, `FileNotFoundError`.
    """
    if missing and not path.exists():
        raise UserError(f"{path}: no such file", missing)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(document, ensure_ascii=False).encode()  # Refuses escapes of no character (\ud800), which could not be written.
        return document
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({first_line(error)})", remedy) from None


def read_numbers(path: Path) -> list[dict[str, float]]:
    """Return the rows of a CSV file of numbers, by column. Raises `UserError` (65): no column, or a cell that is missing or no number."""
    import pandas as pd  # Here, because commands that read no table start without it.

    try:
        table = pd.read_csv(path, dtype=float, keep_default_na=False, na_values=["nan"])
        if not isinstance(table.index, pd.RangeIndex):
            raise ValueError("more cells than columns")
    except ValueError as error:
        raise UserError(f"{path}: not a table of numbers ({first_line(error)})", f"Restore it with: dvc checkout --force {path}") from None
    return cast("list[dict[str, float]]", table.to_dict("records"))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock (flock) on a file; the kernel releases it however this process ends. The block may remove the file.

    Args:
        path: the file; it is created if needed and names this process. A group that may write its folder may write it, too.
        what: name of the work done under the lock, for the message.

    Raises `UserError`: 69, another process holds the lock; 78, the file system has no locks, or the file is another user's.
    """
    while True:
        with _lock_file(path) as file:
            try:
                _flock(file)
            except BlockingIOError:
                file.seek(0)
                message = f"{path}: {what} is running in process {file.read().strip() or 'unknown'}"
                raise UserError(message, "Wait until it ends or stop it, then run again.", ExitCode.UNAVAILABLE) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                message = f"{path}: this file system does not lock files (flock: {error.strerror})"
                remedy = "Mount it with locks (Lustre: -o flock; NFS: version 4), or use another folder."
                raise configuration_error(message, remedy) from None
            if not _is_at(file, path):  # The process that had the lock has removed the file.
                continue
            file.truncate(0)
            file.write(f"{os.getpid()} on {gethostname()}")
            file.flush()
            yield
            return


def _lock_file(path: Path) -> IO[str]:
    """Open or create the file of a lock; the group may write it if it may write the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("a+", encoding="utf-8")
    except PermissionError:
        remedy = f"For a folder that a group shares: chmod -R g+ws {path.parent}, and umask 002."
        raise configuration_error(f"{path}: a lock that you may not write, perhaps another user's", remedy) from None
    with suppress(OSError):  # Its owner has done so.
        if path.parent.stat().st_mode & stat.S_IWGRP:
            os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode | stat.S_IWGRP)
    return file


def _is_at(file: IO[str], path: Path) -> bool:
    """Return whether a path leads to an open file, and not to another one or nowhere."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _flock(file: IO[str]) -> None:
    """Take a lock, or raise `BlockingIOError` if another process holds it for longer than the moment that `is_locked` does."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock (flock) on a file, which a file system without locks cannot say.

    This takes the lock for a moment, which `locked` waits for. To act on a file that is free, hold its lock instead.
    """
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
