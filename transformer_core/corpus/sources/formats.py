"""Sentences in files of any form: text, tables, translation memories, packed or in an archive. The content tells the form, not the name."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_core.compressed import open_bytes, without_packing
from transformer_core.corpus.sources import markup, tables
from transformer_core.corpus.sources.archives import names_in, unpack
from transformer_core.corpus.text import Pair, aligned
from transformer_core.errors import UserError, configuration_error

TEXT, MARKUP, ARCHIVE = "text", "markup", "archive"
_LOOKED_AT = 8_192


@dataclass(frozen=True)
class Side:
    """Where the sentences of one language are.

    Attributes:
        path: a text with a sentence a line, a table, a translation memory; or an archive.
        column: the column's number, from 1, or name; in a translation memory a language, if it is not `language`. None for a text of one
            language, and where names tell.
        member: a pattern (*, ?) that matches the path of one file in an archive.
    """

    path: Path
    language: str = ""
    column: str | None = None
    member: str | None = None


def file_pairs(
    source: Side, target: Side, scratch: Callable[[], AbstractContextManager[str]] = TemporaryDirectory
) -> Iterator[Pair[bytes]]:
    """Yield the pairs of two sides, each line without its end; a line feed in a cell becomes a space.

    Args:
        scratch: makes a folder to unpack members in.

    Raises:
        UserError: exit code 65; a damaged file, a missing cell, or sides of unequal length, after the shorter one has ended. 78: the column
            of a language cannot be told.
    """
    with ExitStack() as stack:
        if source.member or target.member:
            source, target = stack.enter_context(unpacked((source, target), scratch))
        if source.path == target.path:
            yield from (Pair(*pair) for pair in _sentences(source.path, (source, target)))
        else:
            yield from aligned(file_lines(source), file_lines(target), source.path, target.path)


@contextmanager
def unpacked(sides: Sequence[Side], scratch: Callable[[], AbstractContextManager[str]] = TemporaryDirectory) -> Iterator[list[Side]]:
    """Unpack the members of archives into a folder that `scratch` makes."""
    with scratch() as folder:
        paths: dict[Side, Path] = {}
        for side in sides:
            member = Side(side.path, member=side.member)
            if side.member and member not in paths:
                inside = Path(folder, str(len(paths)), side.path.name)  # For messages.
                inside.mkdir(parents=True)
                (paths[member],) = unpack(side.path, [side.member], inside)
        yield [replace(side, path=paths.get(Side(side.path, member=side.member), side.path), member=None) for side in sides]


def file_lines(side: Side) -> Iterator[bytes]:
    """Yield the sentences of one side, which is in no archive. Raises `UserError`: as `file_pairs`."""
    return (sentence for (sentence,) in _sentences(side.path, (side,)))


def _sentences(path: Path, sides: Sequence[Side]) -> Iterator[list[bytes]]:
    columns, languages = [side.column for side in sides], [side.language for side in sides]
    form = form_of(path, is_table=any(columns) or len(set(languages)) == 2)
    if form == TEXT:
        return ([line.encode(errors="surrogateescape")] * len(sides) for line in tables.lines_of(path))
    if form == MARKUP:
        return markup.sentences(path, [column or language for column, language in zip(columns, languages, strict=True)])
    if form == ARCHIVE:
        raise configuration_error(f"{path}: an archive", "Name the file in it with `member`.")
    return tables.sentences(path, form, columns, languages)


def form_of(path: Path, *, is_table: bool = False) -> str:
    """Return the form of a file; text without marks of another form is a table if `is_table`.

    Raises `UserError` (65): as `decompressed`; also for forms that are not read.
    """
    if without_packing(path.name).endswith((".sgm", ".sgml")):
        raise UserError(f"{path}: SGML is not read", "Name the test set with sacrebleu or mtdata, or convert it to text.")
    with open_bytes(path) as file:
        mark = file.read(4)
    if mark in (b"PAR1", b"\xff\xff\xff\xff"):
        return tables.COLUMNAR
    if mark == b"PK\x03\x04":
        return tables.XLSX if "xl/workbook.xml" in names_in(path) else ARCHIVE
    if mark == b"\xd0\xcf\x11\xe0":
        raise UserError(f"{path}: an old Excel file", "Save it as .xlsx or CSV.")
    text = tables.beginning_of(path, _LOOKED_AT)
    if text[257:262] == "ustar":
        return ARCHIVE
    if re.match(r"\s*<", text) and re.search(r"<(?:\w+:)?(?:tmx|xliff)\b", text):
        return MARKUP
    if re.match(r'\s*\[\s*\{\s*"', text):
        raise UserError(f"{path}: a JSON array", "Write one object a line, for example with: jq -c '.[]'")
    if re.match(r'\{\s*"[^"\n]*"\s*:', text):
        return tables.JSON_LINES
    return tables.DELIMITED if is_table else TEXT
