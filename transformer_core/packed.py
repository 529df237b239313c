"""Files that may be packed (.gz, .xz), opened for reading bytes, within a bound for their unpacked size."""

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
# The beginning of a packed file, by the program that packs it.
_PACKED = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\x00", "zip": b"PK\x03\x04"}
_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {"gzip": gzip.open, "xz": lzma.open}
# The program that packs a file, by the ending of its name.
_ENDINGS = {".gz": "gzip", ".xz": "xz"}
# A packed file may unpack to this many times its size plus this many bytes, far more than text needs.
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
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacked if its name ends in .gz or .xz.

    Raises `UserError` (65): as `open_bytes`; the file is packed and has another name, is damaged, or is larger than its bound. The last two
    also come from the block, as it reads.
    """
    file = open_bytes(path)
    packer = _ENDINGS.get(path.suffix)
    if packer is None and (other := _packer(file)):
        file.close()
        raise UserError(f"{path}: packed by {other}", "Unpack it, or end its name in .gz or .xz if it is packed so.")
    try:
        with _unpacked(file, path, packer) if packer else file as content:
            yield content
    except DAMAGED:
        raise UserError(f"{path}: damaged {packer} file", "Get it again.") from None


def open_unpacked(path: Path) -> BinaryIO:
    """Open a file, unpacked if it begins as a file of gzip or xz does, whatever its name."""
    file = open_bytes(path)
    packer = _packer(file)
    return _unpacked(file, path, packer) if packer in _OPENERS else file


def most_bytes(path: Path) -> int:
    """Return the bound for the unpacked size of a packed file."""
    return LARGEST_RATIO * path.stat().st_size + ALLOWED_BYTES


def too_large(path: Path, most: int) -> UserError:
    """Return the error for a file that unpacks to more than `most` bytes."""
    fault = f"unpacks to more than {most:,} bytes, {LARGEST_RATIO} times its size and {ALLOWED_BYTES:,} more"
    remedy = "Text does not compress so well. If this is the right file, unpack it yourself and name the unpacked file."
    return UserError(f"{path}: {fault}", remedy)


def _packer(file: BinaryIO) -> str | None:
    """Return the program that packed an open file, which is not read further; None if it is not packed."""
    beginning = cast(io.BufferedReader, file).peek(max(map(len, _PACKED.values())))
    return next((packer for packer, mark in _PACKED.items() if beginning.startswith(mark)), None)


def _unpacked(file: BinaryIO, path: Path, packer: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Bounded(_OPENERS[packer](file), path)))


class _Bounded(io.RawIOBase):
    """The unpacked content of a file, up to the bound for its size."""

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
