"""Files that may be compressed (gzip, xz, bzip2, zstd), opened for reading bytes, within a bound for their content's size."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from transformer_core.errors import UserError, first_line

# What the openers raise for a damaged file; of the others' errors of the machine `_Bounded` tells those of damage.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
ZIP, ZIP_MARK = "zip", b"PK\x03\x04"
# The beginning of a compressed file as a regular expression, by the program that made it.
_BEGINNINGS = {
    "gzip": b"\x1f\x8b\x08",
    "xz": b"\xfd7zXZ\x00",
    "bzip2": b"BZh[1-9](?:1AY&SY|\x17rE8P\x90)",  # BZh alone may begin a text.
    "zstd": b"[(]\xb5/\xfd",
    ZIP: ZIP_MARK,
}
_LONGEST_BEGINNING = 10
# The program that made a file, by the ending of its name.
_ENDINGS = {".gz": "gzip", ".xz": "xz", ".bz2": "bzip2", ".zst": "zstd"}
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


def _open_zstd(file: BinaryIO) -> Any:
    import pyarrow  # type: ignore[import-untyped]

    return pyarrow.CompressedInputStream(file, "zstd")


_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {"gzip": gzip.open, "xz": lzma.open, "bzip2": bz2.open, "zstd": _open_zstd}


def without_packing(name: str) -> str:
    """Return the name of a file without .gz, .xz, .bz2 or .zst at its end."""
    return name[: -len(Path(name).suffix)] if Path(name).suffix in _ENDINGS else name


@contextmanager
def decompressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file, decompressed if it is compressed, whatever its name.

    Raises `UserError` (65): as `open_bytes`; the file is a zip archive, is named as a compressed file and is none, is damaged, or is larger
    than its bound. The last two also come from the block, as it reads.
    """
    with open_bytes(path) as file:
        beginning = cast(io.BufferedReader, file).peek(_LONGEST_BEGINNING)
        found = next((program for program, mark in _BEGINNINGS.items() if re.match(mark, beginning)), None)
        program = found or _ENDINGS.get(path.suffix)
        if program == ZIP:
            raise UserError(f"{path}: packed by zip", "Unpack it.")
        try:
            yield cast(BinaryIO, io.BufferedReader(_Bounded(_OPENERS[program](file), path))) if program else file
        except DAMAGED:
            raise UserError(f"{path}: damaged {program} file", "Get it again.") from None


def most_bytes(path: Path) -> int:
    """Return the bound for the size of a compressed file's content."""
    return LARGEST_RATIO * path.stat().st_size + ALLOWED_BYTES


def too_large(path: Path, most: int) -> UserError:
    """Return the error for a file that unpacks to more than `most` bytes."""
    fault = f"unpacks to more than {most:,} bytes, {LARGEST_RATIO} times its size and {ALLOWED_BYTES:,} more"
    remedy = "Text does not compress so well. If this is the right file, unpack it yourself and name the unpacked file."
    return UserError(f"{path}: {fault}", remedy)


class _Bounded(io.RawIOBase):
    """The content of a compressed file, up to the bound for its size."""

    def __init__(self, content: Any, path: Path) -> None:
        self._content, self._path, self._most = content, path, most_bytes(path)
        self._place = 0

    def readinto(self, buffer: Any) -> int:
        try:
            count: int = self._content.readinto(buffer)
        except OSError as error:
            if error.errno is not None:  # Of this machine.
                raise
            raise EOFError from error
        self._place += count
        if self._place > self._most:
            raise too_large(self._path, self._most)
        return count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._content.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = self._content.seek(offset, whence)
        return self._place
