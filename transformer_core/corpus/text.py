"""Lines of text and pairs of lines. A line ends at "\\n" only and is strict UTF-8.

`str.splitlines` and Python's universal newlines also break at U+0085, U+2028 and others, which occur inside lines of real corpora.
With them, one side would have more lines than the other, and every pair after the first such line would be wrong.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import AnyStr, Generic, NamedTuple

from transformer_core.compressed import decompressed
from transformer_core.errors import UserError
from transformer_core.files import new_file

# The splits of each corpus, and the beginning of the names of further test sets.
SPLITS = ("train", "valid", "test")
FURTHER_TEST = "test_"
# File of data/raw with the weight of each pair of train, a line each; there is none if all weights are 1.
PAIR_WEIGHTS = "train.weights"
# File of data/raw and data/clean with the name of each training pair's part, a line each; there is none if no source has a name.
PAIR_PARTS = "train.parts"
UNNAMED_PART = "other"
# Number of pairs in a worker's task.
PAIRS_PER_CHUNK = 10_000

# Control characters without those that are white space: tab, line feed, vertical tab, form feed, carriage return, U+001C to U+001F, U+0085.
_CONTROLS = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if not chr(code).isspace()]
# Soft hyphen, zero-width space, direction marks, word joiner and invisible operators, byte order mark. Not U+200C and U+200D: Persian and
# Indic spelling and compound emoji need them.
_INVISIBLE = [0xAD, 0x061C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065), *range(0x2066, 0x206A), 0xFEFF]
_REMOVED: dict[int, str | None] = dict.fromkeys((*_CONTROLS, *_INVISIBLE))
# First words of the names of letters in Unicode, of scripts that are written without spaces between words.
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_PERHAPS_WITHOUT_SPACES = re.compile("[\u0e01-\u1fff\u2e80-\U0010ffff]")
_MOST_IN_A_WORD = 5
# Characters of a symbol on average: phonemes have one or two, syllables of pinyin with a tone below four, words and names more.
_MOST_IN_A_SYMBOL = 4
_LINES_LOOKED_AT = 1000

# C1 control characters in Windows-1252 text that was read as Latin-1: quotes, dashes, the ellipsis (U+0085). Windows-1252 leaves five codes
# undefined.
_WINDOWS_1252 = {code: bytes([code]).decode("cp1252") for code in range(0x80, 0xA0) if code not in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


class Pair(NamedTuple, Generic[AnyStr]):
    """A sentence and its translation, as raw bytes or as text."""

    source: AnyStr
    target: AnyStr


def _replaced(characters: Mapping[int, str | None], text: str) -> str:
    return text if text.isprintable() else text.translate(characters)


@cache
def is_unspaced(character: str) -> bool:
    """Return whether a character is of a script that is written without spaces between words."""
    return unicodedata.name(character, "").startswith(_WITHOUT_SPACES)


def lacks_spaces(text: str) -> bool:
    """Return whether a text has no spaces between words. Segmented text of scripts without spaces has spaces and few characters a word."""
    if text.isascii() or not _PERHAPS_WITHOUT_SPACES.search(text):
        return False
    return sum(map(is_unspaced, text)) > _MOST_IN_A_WORD * len(text.split())


def length_in_words(text: str) -> int:
    """Return the number of words, split at white space; of text without spaces between words the number of characters."""
    words = text.split()
    return sum(map(len, words)) if lacks_spaces(text) else len(words)


def lines_lack_spaces(lines: Sequence[str]) -> bool:
    """Return `lacks_spaces` of most lines like these."""
    return lacks_spaces(" ".join(lines[:_LINES_LOOKED_AT]))


def unit_of_length(lines: Sequence[str]) -> str:
    """Return what `length_in_words` counts in most lines like these: words, or characters."""
    return "characters" if lines_lack_spaces(lines) else "words"


def has_symbols(lines: Iterable[str]) -> bool:
    """Return whether most of these lines have several strings between white space that are symbols, as phonemes, by their mean length."""
    split = [line.split() for line in lines]
    lengths = [*map(len, chain.from_iterable(split))]
    return 2 * sum(len(line) > 1 for line in split) > len(split) and sum(lengths) <= _MOST_IN_A_SYMBOL * len(lengths)


def with_single_spaces(text: str) -> str:
    """Replace every run of white space (also U+0085 and U+2028) by one space, and strip the edges."""
    return " ".join(text.split())


# Name and function of each repair. In this order a second pass changes nothing: a character between a letter and its accent is removed
# before composition, and spaces that composition makes (U+2000 becomes U+2002) are replaced after it.
REPAIRS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("mojibake", partial(_replaced, _WINDOWS_1252)),
    ("control_characters", partial(_replaced, _REMOVED)),
    ("unicode_form", partial(unicodedata.normalize, "NFC")),
    ("white_space", with_single_spaces),
)


def normalise(text: str, counts: Counter[str] | None = None) -> str:
    """Apply all `REPAIRS`, as cleaning does to training text and translation to its input; count those that change the text."""
    # Printable text has no control characters, no characters without width, and no white space but U+0020.
    if text.isprintable() and unicodedata.is_normalized("NFC", text) and "  " not in text and text[:1] != " " != text[-1:]:
        return text
    for name, repair in REPAIRS:
        before, text = text, repair(text)
        if counts is not None:
            counts[name] += before != text
    return text


def read_raw_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as bytes without their "\\n"; the last line may have none. Raises `UserError` (65): as `decompressed`."""
    with decompressed(path) as file:
        for line in file:
            yield line.removesuffix(b"\n")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file as `read_raw_lines` does. Raises `UserError` (65) also for a line that is not valid UTF-8."""
    for number, line in enumerate(read_raw_lines(path), start=1):
        yield decode_line(line, path, number)


def decode_line(line: bytes, path: Path, number: int | str, remedy: str = "Re-encode the file as UTF-8.") -> str:
    """Decode line `number` (from 1) of a file. Raises `UserError` (65), with a column in characters (from 1): not valid UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode("utf-8")) + 1
        raise UserError(f"{path}:{number}: not valid UTF-8 (byte 0x{line[error.start]:02x} at column {column})", remedy) from None


def aligned(source: Iterable[AnyStr], target: Iterable[AnyStr], source_path: Path, target_path: Path) -> Iterator[Pair[AnyStr]]:
    """Pair the lines of two sides. Raises `UserError` (65) after the last line of a shorter side, with the line counts of both."""
    sides = zip_longest(source, target)
    for pairs, (left, right) in enumerate(sides):
        if left is None or right is None:
            longer = pairs + 1 + sum(1 for _ in sides)
            counts = (pairs, longer) if left is None else (longer, pairs)
            raise unequal_sides(source_path, target_path, *counts)
        yield Pair(left, right)


def unequal_sides(source_path: Path, target_path: Path, source_lines: int, target_lines: int) -> UserError:
    """Return the error for two sides with different numbers of lines."""
    remedy = 'Line i of one must belong to line i of the other; lines end at "\\n" only.'
    return UserError(f"{source_path}: {source_lines:,} lines, but {target_path} has {target_lines:,}", remedy)


def read_raw_pairs(source: Path, target: Path) -> Iterator[Pair[bytes]]:
    """Yield the sentence pairs of two aligned files, as `read_raw_lines` and `aligned` do."""
    return aligned(read_raw_lines(source), read_raw_lines(target), source, target)


def read_pairs(source: Path, target: Path) -> Iterator[Pair[str]]:
    """Yield the sentence pairs of two aligned UTF-8 files, as `read_lines` and `aligned` do."""
    return aligned(read_lines(source), read_lines(target), source, target)


class Chunk(NamedTuple):
    """Consecutive lines of both sides of a corpus, not decoded; `first` is the first line's number, from 1."""

    first: int
    source: list[bytes]
    target: list[bytes]


def read_chunks(source: Path, target: Path) -> Iterator[Chunk]:
    """Yield two aligned files in chunks of `PAIRS_PER_CHUNK` pairs: the tasks of workers. Raises `UserError` (65): as `aligned`.

    One process reads for all workers: slices of lines take a third of the time of pairs.
    """
    sides, first = (read_raw_lines(source), read_raw_lines(target)), 1
    while any(lines := [list(islice(side, PAIRS_PER_CHUNK)) for side in sides]):
        if len(lines[0]) != len(lines[1]):
            left, right = (first - 1 + len(some) + sum(1 for _ in side) for some, side in zip(lines, sides, strict=True))
            raise unequal_sides(source, target, left, right)
        yield Chunk(first, *lines)
        first += len(lines[0])


def splits_of(folder: Path, ending: str = "") -> list[str]:
    """Return the splits in a folder, files that end with .LANGUAGE or folders: `SPLITS`, and further test sets by their names."""
    return [*SPLITS, *sorted(path.name.removesuffix(ending) for path in folder.glob(f"{FURTHER_TEST}*{ending}"))]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, each ended by "\\n", all or none. Raises `ValueError`: a line contains a "\\n"."""
    with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            if "\n" in line:
                raise ValueError(f"a line to be written holds a line feed: {line!r}")
            file.write(line + "\n")


def write_pairs(source: Path, target: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Write the two sides of sentence pairs as `write_lines` does."""
    sides = list(zip(*pairs, strict=True)) or [(), ()]
    write_lines(source, sides[0])
    write_lines(target, sides[1])


def without_tags(source: str, is_tag: Callable[[str], object]) -> str:
    """Return a source sentence without the tags at its beginning, if it has some."""
    first, _, rest = source.partition(" ")
    return without_tags(rest, is_tag) if is_tag(first) else source
