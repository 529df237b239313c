"""Files that may be compressed (.gz, .xz), opened for reading bytes, within a bound for their content's size."""

import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from transformer_core.errors import UserError, first_line

# What gzip and lzma raise for a damaged file.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
# The beginning of a compressed file, by the program that made it.
_BEGINNINGS = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\x00", "zip": b"PK\x03\x04"}
_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {"gzip": gzip.open, "xz": lzma.open}
# The program that made a file, by the ending of its name.
_ENDINGS = {".gz": "gzip", ".xz": "xz"}
# The content may have this many times the size of its file plus this many bytes, far more than text needs.
LARGEST_RATIO, ALLOWED_BYTES = 100, 64 << 20


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading bytes. Raises `UserError` (65): no such file, a folder, or a file that cannot be read."""
    try:
        return path.open("rb")
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder", "Name a file.") from None
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file", "Run the stage that makes it, or correct the name.") from None
    except (OSError, ValueError) as error:  # For example of a name that is too long, or that has a NUL.
        raise UserError(f"{path}: cannot be read ({first_line(error)})", "Correct the name, or the rights to the file.") from None


@contextmanager
def decompressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file, decompressed if its name ends in .gz or .xz.

    Raises `UserError` (65): as `open_bytes`; the file is compressed and has another name, is damaged, or is larger than its bound. The last
    two also come from the block, as it reads.
    """
    file = open_bytes(path)
    program = _ENDINGS.get(path.suffix)
    if program is None and (found := _program(file)):
        file.close()
        raise UserError(f"{path}: packed by {found}", "Unpack it, or end its name in .gz or .xz if it is packed so.")
    try:
        with _content(file, path, program) as content:
            yield content
    except DAMAGED:
        raise UserError(f"{path}: damaged {program} file", "Get it again.") from None


def open_decompressed(path: Path) -> BinaryIO:
    """Open a file, decompressed if it begins as a file of gzip or xz does, whatever its name."""
    file = open_bytes(path)
    return _content(file, path, _program(file))


def most_bytes(path: Path) -> int:
    """Return the bound for the size of a compressed file's content."""
    return LARGEST_RATIO * path.stat().st_size + ALLOWED_BYTES


def too_large(path: Path, most: int) -> UserError:
    """Return the error for a file that unpacks to more than `most` bytes."""
    fault = f"unpacks to more than {most:,} bytes, {LARGEST_RATIO} times its size and {ALLOWED_BYTES:,} more"
    remedy = "Text does not compress so well. If this is the right file, unpack it yourself and name the unpacked file."
    return UserError(f"{path}: {fault}", remedy)


def _program(file: BinaryIO) -> str | None:
    """Return the program that compressed an open file, which is not read further; None if it is not compressed."""
    beginning = cast(io.BufferedReader, file).peek(max(map(len, _BEGINNINGS.values())))
    return next((program for program, mark in _BEGINNINGS.items() if beginning.startswith(mark)), None)


def _content(file: BinaryIO, path: Path, program: str | None) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Bounded(_OPENERS[program](file), path))) if program in _OPENERS else file


class _Bounded(io.RawIOBase):
    """The content of a compressed file, up to the bound for its size."""

    def __init__(self, content: Any, path: Path) -> None:
        self._content = content
        self._path = path
        self._most = most_bytes(path)

    def readinto(self, buffer: Any) -> int:
        count: int = self._content.readinto(buffer)
        if self._content.tell() > self._most:
            raise too_large(self._path, self._most)
        return count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place: int = self._content.seek(offset, whence)
        return place

    def close(self) -> None:
        self._content.close()
        super().close()
