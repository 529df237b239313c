"""Tables: tab-separated text, CSV, JSON lines, Parquet, datasets that Hugging Face's `datasets` saved (Arrow), and .xlsx."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TextIO, cast

from transformer_core.compressed import decompressed, most_bytes, open_bytes, too_large
from transformer_core.errors import UserError, configuration_error, first_line, is_of_machine, is_out_of_memory

DELIMITED, JSON_LINES, COLUMNAR, XLSX = "delimited", "json lines", "columnar", "xlsx"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LOOKED_AT = 1 << 20
_LINES_LOOKED_AT = 100
_ROWS_AT_A_TIME = 1_000
_MOST_ROWS = 1 << 20  # That a sheet can have.
_LONGEST_NAME = 40
_DELIMITERS = "\t;,"
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_QUOTED_AMONG_OTHERS = re.compile(rf"(?<![^{_DELIMITERS}]){_QUOTED.pattern}(?![^{_DELIMITERS}\r])")
# What the columns are called by side, and by language.
_SIDES = (("source", "src", "original"), ("target", "tgt", "trg", "translation"))
_ENGLISH_NAMES = {
    "ar": "arabic", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "he": "hebrew", "hi": "hindi", "hu": "hungarian", "id": "indonesian", "it": "italian", "ja": "japanese",
    "ko": "korean", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian",
    "sv": "swedish", "tr": "turkish", "uk": "ukrainian", "vi": "vietnamese", "zh": "chinese",
}  # fmt: skip


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a text in UTF-8, or in UTF-16 with a byte order mark; bytes that are not valid UTF-8 are escaped as surrogates.

    Raises `UserError` (65): as `decompressed`, also for invalid UTF-16.
    """
    with decompressed(path) as file:
        is_utf_16 = cast(io.BufferedReader, file).peek(2).startswith(_UTF_16)
        encoding, errors = ("utf-16", "strict") if is_utf_16 else ("utf-8-sig", "surrogateescape")
        try:
            yield io.TextIOWrapper(file, encoding, errors, newline="\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not valid UTF-16 ({first_line(error)})", "Get it again, or save it as UTF-8.") from None


def beginning_of(path: Path, size: int = _LOOKED_AT) -> str:
    """Return the first characters of a text."""
    with open_text(path) as text:
        return text.read(size)


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text without their ends, "\\n" or "\\r\\n"."""
    with open_text(path) as text:
        for line in text:
            yield line.removesuffix("\n").removesuffix("\r")


def sentences(path: Path, form: str, columns: Sequence[str | None], languages: Sequence[str]) -> Iterator[list[bytes]]:
    """Yield the text of columns in each row of a table.

    Columns are numbers, from 1, or names, `translation.en` for a value in a value; None for those that the languages name. Raises
    `UserError`: 65, as `decompressed`; also for a damaged table, a missing cell, or a cell that is no text. 78, names and number of the
    columns do not tell which are meant.
    """
    chosen = [column for column in columns if column]
    for number, row in _rows(path, form, chosen, languages):
        cells = dict(_flat(row))
        if len(chosen) < len(columns):
            told = _told(path, cells, languages)
            chosen = [column or other for column, other in zip(columns, told, strict=True)]
        for column in chosen:
            if column not in cells:
                raise UserError(f"{path}:{number}: no column {column}", f"There are {_listed(cells)}.")
            if not isinstance(cells[column], str | None):
                raise UserError(f"{path}:{number}: column {column} is no text, but {type(cells[column]).__name__}", "Name another column.")
        try:
            yield [re.sub(r"\r?\n", " ", cells[column] or "").encode(errors="surrogateescape") for column in chosen]
        except UnicodeEncodeError:
            raise UserError(f"{path}:{number}: has half of a surrogate pair", "Write the text again.") from None


def _told(path: Path, cells: dict[str, Any], languages: Sequence[str]) -> list[str]:
    """Return the columns of the languages, by the names or the number of the columns of a row."""
    names = _names(cells)
    for sides in ([*map(_words_for, languages)], _SIDES if len(languages) == 2 else [sum(_SIDES, ())]):
        found = [[name for name in names if _is_called(name, words)] for words in sides]
        if all(len(of_side) == 1 for of_side in found) and len({name for (name,) in found}) == len(languages):
            return [name for (name,) in found]
    if len(names) == len(languages) and (names[0].isdecimal() or len(names) == 1):
        return names
    if len(names) < len(languages):
        raise configuration_error(f"{path}: one column, so one language", "Name the file of the other language, too.")
    fault = f"{path}: which of its columns hold {' and '.join(languages)}? There are {_listed(cells)}"
    raise configuration_error(fault, "Set --source and --target to their names or numbers.")


def _words_for(language: str) -> tuple[str, ...]:
    return tuple(filter(None, (language, _ENGLISH_NAMES.get(language))))


def _is_called(name: str, words: Collection[str]) -> bool:
    """Return whether a column is called by one of these words: en, sentence_en, translation.en, en-GB, Source Text."""
    called = rf"(?:[^\W_]+[._-])*(?:{'|'.join(map(re.escape, words))})(?:[-_][a-z]{{2,4}}|[ _-]?(?:text|sentence|segment|language))?"
    return bool(words) and len(name) <= _LONGEST_NAME and re.fullmatch(called, name.casefold().strip()) is not None


def _flat(row: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a row, those in another value with its name and a dot before theirs."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _names(cells: dict[str, Any]) -> list[str]:
    return [name for name in cells if not name.isdecimal()] or [*cells]


def _listed(cells: dict[str, Any]) -> str:
    shown = ((name, str(cells[name])) for name in (filter(str.isdecimal, cells) if "" in cells else _names(cells)))
    return ", ".join(f"{name} ({value[:_LONGEST_NAME]}{'...' * (len(value) > _LONGEST_NAME)})" for name, value in shown)


def _rows(path: Path, form: str, columns: Sequence[str], languages: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows with their numbers; cells in order by their number and, if the first row has names, by these."""
    if form in (JSON_LINES, COLUMNAR):
        yield from _json_lines(path) if form == JSON_LINES else _columnar(path)
        return
    words = {word for side in (*_SIDES, *map(_words_for, languages)) for word in side}
    names, all_count = None, len(columns) < len(languages)  # A code in a column that was not asked for may be in each row.
    for number, cells in _delimited(path) if form == DELIMITED else _sheet(path):
        if names is None:
            asked = [cell for place, cell in enumerate(cells, 1) if all_count or str(place) in columns or cell not in languages]
            of_languages = sum(_is_called(cell, words) for cell in asked)
            is_named = any(column in cells for column in columns if not column.isdecimal())
            found = [name if cells.count(name) == 1 else "" for name in cells]  # One that two columns have is that of neither.
            names = found if is_named or of_languages >= len(languages) else ()
            if names:
                continue
        yield number, dict(zip(map(str, count(1)), cells, strict=False)) | dict(zip(names, cells, strict=False))


def _delimited(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Tab-separated text, or CSV with commas or semicolons, as its first lines tell."""
    beginning = beginning_of(path).split("\n")
    delimiter = max(_DELIMITERS, key=partial(_regularity, beginning[:_LINES_LOOKED_AT]))
    number = width = 0
    if delimiter == "\t" and not _has_quoted_cells(beginning):
        yield from enumerate((line.split("\t") for line in lines_of(path)), start=1)
        return
    try:
        with open_text(path) as text:
            for number, cells in enumerate(filter(None, csv.reader(text, delimiter=delimiter, strict=True)), start=1):
                if number == 1 and cells[0] == "sep=":
                    continue  # For Excel: the delimiter.
                width = width or len(cells)
                if len(cells) != width:
                    fault = f"{path}:{number}: {len(cells)} columns, where the first row has {width}"
                    remedy = "Put a cell that holds the delimiter into quotes. A text of one language needs the other's file."
                    raise UserError(fault, remedy)
                yield number, cells
    except csv.Error as error:
        raise UserError(f"{path}:{number + 1}: not valid CSV ({error})", "Double each quote in a cell, quote its line breaks.") from None


def _regularity(lines: list[str], delimiter: str) -> int:
    """Return how many lines have the same number of a delimiter outside of quoted cells."""
    counts = Counter(_QUOTED_AMONG_OTHERS.sub("", line).count(delimiter) for line in lines)
    return max((lines for count, lines in counts.items() if count), default=0)


def _has_quoted_cells(lines: list[str]) -> bool:
    """Return whether quotes around a cell of tab-separated text are no part of it; sentences begin and end with quotation marks, too.

    A program that quotes cells with quotes in them doubles these; the others quote all cells of a column.
    """
    cells = [cell for line in lines[:-1] for cell in line.removesuffix("\r").split("\t") if cell.startswith('"')]
    return all(map(_QUOTED.fullmatch, cells)) and (any('""' in cell[1:-1] for cell in cells) or len(cells) >= len(lines))


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines_of(path), start=1):
        try:
            row = json.loads(line) if line.strip() else {}
            if not isinstance(row, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON ({first_line(error)})", "Write one object a line.") from None
        if row:
            yield number, row


def _columnar(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Parquet, or a stream of Arrow."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import ipc, parquet

    number = size = 0
    try:
        with open_bytes(path) as file:
            is_parquet = cast(io.BufferedReader, file).peek(4).startswith(b"PAR1")
            for batch in parquet.ParquetFile(file).iter_batches(_ROWS_AT_A_TIME) if is_parquet else ipc.open_stream(file):
                batch.validate(full=True)  # Otherwise a damaged file could crash the process.
                size += batch.nbytes
                if size > most_bytes(path):
                    raise too_large(path, most_bytes(path))
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, MemoryError, OSError, ValueError, LookupError) as error:
        if is_of_machine(error):
            raise
        raise _damaged(path, number, error) from None


def _sheet(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The first sheet of an Excel workbook."""
    import openpyxl  # type: ignore[import-untyped]

    number = 0
    try:
        with open_bytes(path) as file:  # Its size when unpacked was checked when its form was found.
            sheet = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets[0]
            width = sheet.max_column or 0
            sheet.reset_dimensions()  # Some programs write wrong ones, or none; a row then ends with its last cell.
            for number, row in enumerate(sheet.iter_rows(max_row=_MOST_ROWS, values_only=True), start=1):
                width = max(width, len(row))
                if any(cell is not None for cell in row):
                    yield number, ["" if cell is None else str(cell) for cell in (*row, *[None] * (width - len(row)))]
    except Exception as error:  # Of many kinds, because openpyxl does not check what it reads.
        if isinstance(error, UserError) or is_out_of_memory(error) or is_of_machine(error):
            raise
        raise _damaged(path, number, error) from None


def _damaged(path: Path, number: int, error: BaseException) -> UserError:
    return UserError(f"{path}: damaged after row {number:,} ({first_line(error)})", "Get it again, or make it again.")
