"""Lines of text: they end at "\\n" and nowhere else, and are strict UTF-8.

`str.splitlines` and Python's universal newlines also break at U+0085, U+2028 and others, which stand inside lines of real corpora;
a side read that way is longer than the other, and every pair after the first such line is wrong.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, AnyStr, BinaryIO

from transformer_core.errors import UserError
from transformer_core.files import new_file

# Tab, line feed, vertical tab, form feed, carriage return, the four separators and U+0085 are white space: they part words.
_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if not chr(code).isspace()]
# Soft hyphen, zero-width space, direction marks, word joiner and invisible operators, byte order mark. U+200C and U+200D stay: they
# are spelling in Persian and Indic scripts and hold emoji together.
_INVISIBLE = [0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065), *range(0x2066, 0x206A), 0xFEFF]
_REMOVED = dict.fromkeys((*_CONTROLS, *_INVISIBLE))
_ENTITY = re.compile(r"&(?:[a-zA-Z]\w{1,7}|#\d{1,7}|#x[0-9a-fA-F]{1,6});")

# C1 control characters that text read as Latin-1 has where Windows-1252 has quotes, dashes and the ellipsis (U+0085); five are nothing
# there.
_WINDOWS_1252 = {code: bytes([code]).decode("cp1252") for code in range(0x80, 0xA0) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


def as_windows_1252(text: str) -> str:
    """The text with C1 control characters as what they were before Windows-1252 was read as Latin-1."""
    return text if text.isprintable() else text.translate(_WINDOWS_1252)


def without_controls(text: str) -> str:
    """The text without control characters and characters that take no space (white space stays, whatever its code)."""
    return text if text.isprintable() else text.translate(_REMOVED)


def composed(text: str) -> str:
    """The text in Unicode's normal form C."""
    return unicodedata.normalize("NFC", text)


def with_single_spaces(text: str) -> str:
    """The text with every run of white space, U+0085 and U+2028 among it, as one space, and none at the edges."""
    return " ".join(text.split())


# The name of each repair and what does it. In this order a second pass changes nothing: what stands between a letter and its accent
# is gone before they are composed, and the spaces that composing makes (U+2000 becomes U+2002) are folded after it.
REPAIRS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("mojibake", as_windows_1252),
    ("control_characters", without_controls),
    ("unicode_form", composed),
    ("white_space", with_single_spaces),
)


def is_normal(text: str) -> bool:
    """Whether `REPAIRS` leave a text as it is, at a small part of their cost; False is no proof that they change it."""
    # What is printable has no control characters, none without width, and no white space but U+0020.
    return text.isprintable() and unicodedata.is_normalized("NFC", text) and "  " not in text and text[:1] != " " != text[-1:]


def has_entity(text: str) -> bool:
    """Whether a character is spelled out as in HTML, which Moses' tokeniser does: &apos; or &#124;."""
    return "&" in text and _ENTITY.search(text) is not None


def normalise(text: str) -> str:
    """One spelling for one text: what training text went through, and so what every text to be translated goes through."""
    for _, repair in REPAIRS:
        text = repair(text)
    return text


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file as bytes, without their "\\n"; a last line that has none counts too.

    Raises:
        UserError: exit code 65; no such file.
    """
    with opened(path) as file:
        for line in file:
            yield line.removesuffix(b"\n")


def opened(path: Path) -> BinaryIO:
    """The file's bytes.

    Raises:
        UserError: exit code 65; no such file.
    """
    try:
        return path.open("rb")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise UserError(f"{path}: no such file", "Run the stage that makes it, or mend the name.") from None


def decode_line(line: bytes, path: Path, number: int, remedy: str = "Re-encode the file as UTF-8.") -> str:
    """The text of a line; `path` and `number` (from 1) say where it stands.

    Raises:
        UserError: exit code 65; not valid UTF-8. The column counts characters, from 1.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        fault = f"not valid UTF-8 (byte 0x{line[error.start]:02x} at column {column})"
        raise UserError(f"{path}:{number}: {fault}", remedy) from None


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, without their "\\n".

    Raises:
        UserError: exit code 65; no such file, or a line that is not valid UTF-8.
    """
    for number, line in enumerate(read_raw_lines(path), start=1):
        yield decode_line(line, path, number)


def aligned(source: Iterable[AnyStr], target: Iterable[AnyStr], source_path: Path, target_path: Path) -> Iterator[tuple[AnyStr, AnyStr]]:
    """The lines of two sides in pairs.

    Raises:
        UserError: exit code 65, once the shorter side has ended; names both files with their line counts.
    """
    sides = zip_longest(source, target)
    for pairs, (left, right) in enumerate(sides):
        if left is None or right is None:
            longer = pairs + 1 + sum(1 for _ in sides)
            counts = (pairs, longer) if left is None else (longer, pairs)
            raise unequal_sides(source_path, target_path, *counts)
        yield left, right


def unequal_sides(source_path: Path, target_path: Path, source_lines: int, target_lines: int) -> UserError:
    """The error for two sides of which line i of one cannot be the translation of line i of the other."""
    return UserError(
        f"{source_path}: {source_lines:,} lines, but {target_path} has {target_lines:,}",
        'Line i of one must translate line i of the other; lines end at "\\n" only.',
    )


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The sentence pairs of two aligned UTF-8 files.

    Raises:
        UserError: exit code 65; a file that is missing or not valid UTF-8, or sides of unequal length (once the shorter has ended).
    """
    return aligned(read_lines(source), read_lines(target), source, target)


@dataclass(frozen=True)
class Chunk:
    """Some lines of both sides of a corpus, the first of them number `first` (from 1); each ends with a line feed."""

    first: int
    source: bytes
    target: bytes


def read_chunks(source: Path, target: Path, pairs: int) -> Iterator[Chunk]:
    """Two aligned files in chunks of so many pairs, not decoded yet.

    Raises:
        UserError: exit code 65; a missing file, or sides of unequal length (once the shorter has ended).
    """
    with ExitStack() as stack:
        files = [stack.enter_context(opened(path)) for path in (source, target)]
        first = 1
        while any(sides := [list(islice(file, pairs)) for file in files]):
            left, right = (first - 1 + len(side) for side in sides)
            if left != right:
                rest = [sum(1 for _ in file) for file in files]
                raise unequal_sides(source, target, left + rest[0], right + rest[1])
            yield Chunk(first, *(b"".join(side).removesuffix(b"\n") + b"\n" for side in sides))
            first = left + 1


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines, each ended by "\n", whole or not at all; returns how many.

    Raises:
        ValueError: a line holds a "\n", so it would be read back as two.
    """
    with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        return sum(_write_line(file, line) for line in lines)


def write_pairs(source: Path, target: Path, pairs: Iterable[tuple[str, str]]) -> int:
    """Write the two sides of sentence pairs as `write_lines` does; returns how many pairs."""
    with ExitStack() as stack:
        left, right = (
            stack.enter_context(stack.enter_context(new_file(path)).open("w", encoding="utf-8", newline="\n")) for path in (source, target)
        )
        return sum(_write_line(left, pair[0]) and _write_line(right, pair[1]) for pair in pairs)


def _write_line(file: IO[str], line: str) -> int:
    if "\n" in line:
        raise ValueError(f"a line to be written holds a line feed: {line!r}")
    file.write(line + "\n")
    return 1
