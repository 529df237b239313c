"""Sentences in files of any form: text, tables, translation memories, packed or in an archive. The content tells the form, not the name."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_core.compressed import ZIP_MARK, open_bytes, without_packing
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
    """Yield the pairs of two sides, each line without its end; a line feed in a cell becomes a space. `scratch` makes a folder for members.

    Raises `UserError`: 65, a damaged file, a missing cell, or sides of unequal length, after the shorter one has ended; 78, the column of a
    language cannot be told.
    """
    if source.member or target.member:
        with scratch() as folder:
            first = _unpacked(source, Path(folder, "1", source.path.name))
            same = (source.path, source.member) == (target.path, target.member)
            second = replace(target, path=first.path, member=None) if same else _unpacked(target, Path(folder, "2", target.path.name))
            yield from file_pairs(first, second)
    elif source.path == target.path:
        yield from (Pair(*pair) for pair in _sentences(source.path, (source, target)))
    else:
        yield from aligned(file_lines(source), file_lines(target), source.path, target.path)


def _unpacked(side: Side, folder: Path) -> Side:
    """Return a side whose member of an archive is unpacked in a folder, which has the archive's name for messages."""
    if side.member is None:
        return side
    folder.mkdir(parents=True)
    (path,) = unpack(side.path, [side.member], folder)
    return replace(side, path=path, member=None)


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
    """Return a file's form, table for unmarked text if `is_table`. Raises `UserError` (65): as `decompressed`; also for forms not read."""
    if without_packing(path.name).endswith((".sgm", ".sgml")):
        raise UserError(f"{path}: SGML is not read", "Name the test set with sacrebleu or mtdata, or convert it to text.")
    with open_bytes(path) as file:
        mark = file.read(4)
    if mark in (b"PAR1", b"\xff\xff\xff\xff"):
        return tables.COLUMNAR
    if mark == ZIP_MARK:
        return tables.XLSX if "xl/workbook.xml" in names_in(path) else ARCHIVE
    if mark == b"\xd0\xcf\x11\xe0":
        raise UserError(f"{path}: an old Excel file", "Save it as .xlsx or CSV.")
    text = tables.beginning_of(path, _LOOKED_AT)
    if text.encode(errors="surrogateescape")[257:262] == b"ustar":
        return ARCHIVE
    if re.match(r"\s*<", text) and re.search(r"<(?:\w+:)?(?:tmx|xliff)\b", text):
        return MARKUP
    if re.match(r'\s*\[\s*\{\s*"', text):
        raise UserError(f"{path}: a JSON array", "Write one object a line, for example with: jq -c '.[]'")
    if re.match(r'\{\s*"[^"\n]*"\s*:', text):
        return tables.JSON_LINES
    return tables.DELIMITED if is_table else TEXT
