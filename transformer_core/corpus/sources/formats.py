"""Sentences in files of any form: text, tables, translation memories, packed or in an archive. The content tells the form, not the name."""

import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_core.compressed import decompressed, open_bytes, without_packing
from transformer_core.corpus.sources import markup, tables
from transformer_core.corpus.sources.archives import DAMAGED_ARCHIVE, is_of_machine, unpack
from transformer_core.corpus.text import Pair, aligned
from transformer_core.errors import UserError, configuration_error

TEXT, MARKUP, XLSX, ARCHIVE = "text", "markup", "xlsx", "archive"
_LOOKED_AT = 8_192
_WORKBOOK = "xl/workbook.xml"
_OLD_EXCEL = b"\xd0\xcf\x11\xe0"


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
            of a language cannot be told, or there is none of its name.
    """
    with unpacked((source, target), scratch) as (left, right):
        if left.path == right.path:
            yield from starmap(Pair, _sentences(left.path, (left, right)))
        else:
            yield from aligned(file_lines(left), file_lines(right), left.path, right.path)


def file_lines(side: Side) -> Iterator[bytes]:
    """Yield the sentences of one side, which is in no archive. Raises `UserError`: as `file_pairs`."""
    for (sentence,) in _sentences(side.path, (side,)):
        yield sentence


def _sentences(path: Path, sides: Sequence[Side]) -> Iterator[list[bytes]]:
    form = form_of(path, is_table=any(side.column for side in sides))
    if form == TEXT:
        return ([line] * len(sides) for line in tables.text_lines(path))
    languages = [side.language for side in sides]
    if form == MARKUP:
        return markup.sentences(path, [side.language if (side.column or "0").isdecimal() else side.column or "" for side in sides])
    if form == ARCHIVE:
        raise configuration_error(f"{path}: an archive", "Name the file in it with `member`.")
    chosen = [side.column for side in sides if side.column]
    columns = chosen if len(chosen) == len(sides) else tables.columns_for(path, form, languages)
    return tables.sentences(path, form, columns, languages)


@contextmanager
def unpacked(sides: Sequence[Side], scratch: Callable[[], AbstractContextManager[str]] = TemporaryDirectory) -> Iterator[Sequence[Side]]:
    """Unpack the members among the sides; an error of one names its archive."""
    if not any(side.member for side in sides):
        yield sides
        return
    with scratch() as folder:
        paths: dict[tuple[Path, str | None], Path] = {}
        for side in sides:
            if side.member and (side.path, side.member) not in paths:
                inside = Path(folder) / str(len(paths))
                inside.mkdir()
                (paths[side.path, side.member],) = unpack(side.path, [side.member], inside)
        try:
            yield [replace(side, path=paths.get((side.path, side.member), side.path), member=None) for side in sides]
        except UserError as error:
            message = error.message
            for (archive, member), path in paths.items():
                message = message.replace(str(path), f"{archive}: {member}")
            raise UserError(message, error.remedy, error.exit_code) from None


def form_of(path: Path, *, is_table: bool = False) -> str:
    """Return the form of a file: `TEXT`, `MARKUP`, `ARCHIVE` or one of `tables.READERS`; other text is a table if `is_table`.

    Raises `UserError` (65): as `decompressed`; also for forms that are not read.
    """
    if without_packing(path.name).endswith((".sgm", ".sgml")):
        raise UserError(f"{path}: SGML is not read", "Name the test set with sacrebleu or mtdata, or convert it to text.")
    with open_bytes(path) as file:
        mark = tables.peek(file, 6)
    if mark.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
        return "columnar"
    if mark.startswith(b"PK\x03\x04"):
        return _form_of_zip(path)
    if mark.startswith(_OLD_EXCEL):
        raise UserError(f"{path}: an old Excel file", "Save it as .xlsx or CSV.")
    with decompressed(path) as file:
        beginning = file.read(_LOOKED_AT)
    if beginning[257:262] == b"ustar":
        return ARCHIVE
    text = beginning.decode("utf-16" if beginning.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig", errors="ignore").lstrip()
    if text.startswith("<") and re.search(r"<(?:\w+:)?(?:tmx|xliff)\b", text):
        return MARKUP
    if re.match(r'\[\s*\{\s*"', text):
        raise UserError(f"{path}: a JSON array", "Write one object a line, for example with: jq -c '.[]'")
    if re.match(r'\{\s*"[^"\n]*"\s*:', text):
        return "json"
    return "delimited" if is_table else TEXT


def _form_of_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as members:
            return XLSX if _WORKBOOK in members.namelist() else ARCHIVE
    except DAMAGED_ARCHIVE as error:
        if is_of_machine(error):
            raise
        raise UserError(f"{path}: damaged zip archive or .xlsx file", "Get it again.") from None
