"""Tables: tab-separated text, CSV, JSON lines, Parquet, datasets that Hugging Face's `datasets` saved (Arrow), and .xlsx."""

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from transformer_core.compressed import decompressed, most_bytes, open_bytes, too_large
from transformer_core.corpus.sources.archives import is_of_machine
from transformer_core.errors import UserError, configuration_error, first_line, is_out_of_memory

# A row, and the number of its line or row: cells in order, or values by name.
Row = list[Any] | dict[str, Any]
Rows = Iterator[tuple[int, Row]]

_BOMS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_LOOKED_AT = 1 << 20
_ROWS_AT_A_TIME = 1_000
_ROWS_OF_A_SHEET = 1 << 20
_SHOWN = 40
# What a header calls the columns: by the language, or by the side.
_SIDES = (("source", "src", "original"), ("target", "tgt", "trg", "translation"))
_ENGLISH_NAMES = {
    "ar": "arabic", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "he": "hebrew", "hi": "hindi", "hu": "hungarian", "id": "indonesian", "it": "italian", "ja": "japanese",
    "ko": "korean", "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian",
    "sv": "swedish", "tr": "turkish", "uk": "ukrainian", "vi": "vietnamese", "zh": "chinese",
}  # fmt: skip


def text_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text, without byte order mark and carriage returns at their ends; UTF-16 with a mark becomes UTF-8.

    Raises `UserError` (65): as `decompressed`, also for invalid UTF-16.
    """
    number = -1
    with decompressed(path) as file:
        beginning = peek(file, 3)
        mark = next((mark for mark in _BOMS if beginning.startswith(mark)), b"")
        try:
            for number, line in enumerate(_of_utf16(file) if _BOMS.get(mark) == "utf-16" else file):
                text = line.removeprefix(mark) if number == 0 else line
                yield text.removesuffix(b"\n").removesuffix(b"\r")
        except UnicodeError as error:
            fault = f"{path}: not valid UTF-16 after line {number + 1} ({first_line(error)})"
            raise UserError(fault, "Get it again, or save it as UTF-8.") from None


def _of_utf16(file: BinaryIO) -> Iterator[bytes]:
    return (line.encode() for line in io.TextIOWrapper(file, "utf-16", newline="\n"))


def peek(file: BinaryIO, size: int) -> bytes:
    """Return the first bytes of a file that was just opened, which is not read further."""
    return cast(io.BufferedReader, file).peek(size)[:size]


def beginning_of(path: Path) -> str:
    """Return the beginning of a text, its characters that are not valid UTF-8 escaped."""
    lines, size = [], 0
    for line in text_lines(path):
        lines.append(line.decode(errors="surrogateescape"))
        size += len(line)
        if size > _LOOKED_AT:
            break
    return "\n".join(lines)


def _delimited(path: Path, _: Sequence[str]) -> Rows:
    """Tab-separated text, or CSV with commas or semicolons, as its first lines tell."""
    delimiter, quoted = _dialect(beginning_of(path))
    lines = (line.decode(errors="surrogateescape") for line in text_lines(path))
    if not quoted:
        yield from ((number, [*line.split(delimiter)]) for number, line in enumerate(lines, start=1))
        return
    rows = csv.reader((f"{line}\n".replace("\r", " ") for line in lines), delimiter=delimiter, strict=True)
    width, first = 0, 1
    try:
        for row in filter(None, rows):
            width = width or len(row)
            if len(row) != width:
                fault = f"{path}:{first}: {len(row)} columns, where the first row has {width}"
                raise UserError(fault, "Put a cell that holds the delimiter into quotes. A text of one language needs the other's file.")
            yield first, row
            first = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{first}: not valid CSV ({error})", "Double each quote inside a quoted cell.") from None


def _dialect(beginning: str) -> tuple[str, bool]:
    """Return the delimiter of a table, and whether it may have quoted cells."""
    lines = beginning.split("\n")
    if "\t" not in beginning.partition("\n")[0]:
        return max(",;", key=lambda delimiter: _cells_of_first(lines, delimiter)), True
    # Sentences with quotation marks look like quoted cells. A program that quotes where it must also quotes and doubles each such mark; the
    # other programs quote all cells of a column.
    complete = lines[:-1] if len(beginning) > _LOOKED_AT else lines
    try:
        rows = list(csv.reader((f"{line}\n" for line in complete), delimiter="\t", strict=True))
    except csv.Error:
        return "\t", False
    written = io.StringIO()
    csv.writer(written, delimiter="\t", lineterminator="\n").writerows(rows)
    whole_columns = len(re.findall(r'(?:^|\t)"(?:[^"]|"")*"(?=\t|$)', "\n".join(complete), re.MULTILINE)) >= len(rows)
    return "\t", len(set(map(len, rows))) == 1 and (written.getvalue() == "".join(f"{line}\n" for line in complete) or whole_columns)


def _cells_of_first(lines: list[str], delimiter: str) -> int:
    try:
        return len(next(csv.reader(lines, delimiter=delimiter), []))
    except csv.Error:
        return 0


def _json_lines(path: Path, _: Sequence[str]) -> Rows:
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON ({first_line(error)})", "Write one object a line.") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: no JSON object", "Write one object a line.")
        yield number, row


def _columnar(path: Path, columns: Sequence[str]) -> Rows:
    """Parquet, or Arrow as a file or a stream; of the columns only these, if any is named."""
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import ipc, parquet

    number, size, tops = 0, 0, {column.partition(".")[0] for column in columns}
    try:
        with open_bytes(path) as file:
            batches: Iterable[Any]
            if peek(file, 4) == b"PAR1":
                opened = parquet.ParquetFile(file)
                known = tops <= set(opened.schema_arrow.names)
                batches = opened.iter_batches(_ROWS_AT_A_TIME, columns=[*columns] if columns and known else None)
            else:
                opened = ipc.open_file(file) if peek(file, 6) == b"ARROW1" else ipc.open_stream(file)
                known = tops <= set(opened.schema.names)
                batches = map(opened.get_batch, range(opened.num_record_batches)) if hasattr(opened, "get_batch") else opened
            for batch in batches:
                batch.validate(full=True)  # Otherwise a damaged file could crash the process.
                chosen = batch.select(sorted(tops)) if columns and known else batch
                size += chosen.nbytes
                if size > most_bytes(path):
                    raise too_large(path, most_bytes(path))
                for row in chosen.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, MemoryError, OSError, ValueError, LookupError) as error:
        if is_of_machine(error):
            raise
        raise _damaged(path, number, error) from None


def _sheet(path: Path, _: Sequence[str]) -> Rows:
    """The first sheet of an Excel workbook."""
    import openpyxl  # type: ignore[import-untyped]

    number = 0
    try:
        with open_bytes(path) as file, zipfile.ZipFile(file) as members:
            if sum(member.file_size for member in members.infolist()) > most_bytes(path):
                raise too_large(path, most_bytes(path))
            sheet = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets[0]
            for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
                if number > _ROWS_OF_A_SHEET:
                    raise ValueError("more rows than a sheet can have")
                if any(cell is not None for cell in row):
                    yield number, ["" if cell is None else str(cell) for cell in row]
    except Exception as error:  # Of many kinds, because openpyxl does not check what it reads.
        if isinstance(error, UserError) or is_out_of_memory(error) or is_of_machine(error):
            raise
        raise _damaged(path, number, error) from None


def _damaged(path: Path, number: int, error: Exception) -> UserError:
    return UserError(f"{path}: damaged after row {number:,} ({first_line(error)})", "Get it again, or make it again.")


READERS: dict[str, Callable[[Path, Sequence[str]], Rows]] = {
    "delimited": _delimited,
    "json": _json_lines,
    "columnar": _columnar,
    "xlsx": _sheet,
}


def sentences(path: Path, form: str, columns: Sequence[str], languages: Sequence[str]) -> Iterator[list[bytes]]:
    """Yield the text of columns in each row of a table: by number, from 1, or by name, `translation.en` for a value within a value.

    A first row with names is no sentence: a column is named, or the row has names of languages or sides in these columns.
    Raises `UserError`: 65, as `decompressed`; also for a damaged table, a missing cell, a cell that is no text; 78 for an unknown column.
    """
    named = [column for column in columns if not column.isdecimal()]
    rows = READERS[form](path, columns if len(named) == len(columns) else ())
    start = next(rows, None)
    if start is None:
        return
    first, remaining = start[1], chain([start], rows)
    if isinstance(first, dict):
        for number, row in remaining:
            assert isinstance(row, dict)
            yield [_text(_value(row, column, f"{path}:{number}"), column, f"{path}:{number}") for column in columns]
        return
    names = [cell.strip().casefold() for cell in first]
    for column in named:
        if column.casefold() not in names:
            raise configuration_error(f"{path}: no column is called {column}", f"The first row has {_listed(first)}.")
    places = [int(column) - 1 if column.isdecimal() else names.index(column.casefold()) for column in columns]
    words = {word for side in (*_SIDES, *map(_words_for, languages)) for word in side}
    if named or all(place < len(names) and _is_called(names[place], words) for place in places):
        next(remaining)
    for number, cells in remaining:
        assert isinstance(cells, list)
        check_width(path, number, len(cells), places)
        yield [_text(cells[place], str(place + 1), f"{path}:{number}") for place in places]


def check_width(path: Path, number: int, width: int, places: Sequence[int]) -> None:
    """Check that a row has the columns at these places, from 0. Raises `UserError` (65)."""
    if width <= max(places):
        fault = f"{path}:{number}: {width} columns, but column {max(places) + 1} is wanted"
        raise UserError(fault, "Check that the same character separates the columns in each row, and which columns are wanted.")


def columns_for(path: Path, form: str, languages: Sequence[str]) -> list[str]:
    """Return the names or numbers of the columns with text of these languages, the source's and the target's or one of them.

    Raises `UserError`: 65, as `sentences`; 78 if neither the names nor the number of the columns tell.
    """
    _, first = next(READERS[form](path, ()), (0, []))
    names = _paths(first) if isinstance(first, dict) else [cell.strip() for cell in first]
    for sides in ([*map(_words_for, languages)], _SIDES if len(languages) == 2 else [sum(_SIDES, ())]):
        found = [[name for name in names if _is_called(name, words)] for words in sides]
        if all(len(of_side) == 1 for of_side in found) and len({name for (name,) in found}) == len(languages):
            return [name for (name,) in found]
    if len(names) == len(languages) and (isinstance(first, list) or len(names) == 1):
        return [str(number) for number in range(1, len(names) + 1)] if isinstance(first, list) else names
    if len(names) < len(languages):
        raise configuration_error(f"{path}: one column, so one language", "Name the file of the other language, too.")
    fault = f"{path}: which of its {len(names)} columns hold {' and '.join(languages)}? It has {_listed(names)}"
    raise configuration_error(fault, "Set --source and --target to their names or numbers.")


def _words_for(language: str) -> tuple[str, ...]:
    return tuple(filter(None, (language.casefold(), _ENGLISH_NAMES.get(language.casefold()))))


def _is_called(name: str, words: Collection[str]) -> bool:
    """Return whether a column is called by one of these words: en, sentence_en, translation.en, en-GB, Source Text."""
    called = rf"(?:[^\W_]+[._-])*(?:{'|'.join(map(re.escape, words))})(?:[-_][a-z]{{2,4}}|[ _-]?(?:text|sentence|segment|language))?"
    return bool(words) and len(name) <= _SHOWN and re.fullmatch(called, name.casefold()) is not None


def _paths(row: Mapping[str, Any], above: str = "") -> list[str]:
    """Return the names of the texts in a row: those inside another value after its name and a dot."""
    paths = []
    for name, value in row.items():
        if isinstance(value, dict):
            paths += _paths(value, f"{above}{name}.")
        elif value is None or isinstance(value, str):
            paths.append(f"{above}{name}")
    return paths


def _listed(names: Sequence[str]) -> str:
    shown = (name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..." for name in names)
    return ", ".join(f'{number} "{name}"' for number, name in enumerate(shown, start=1)) or "none"


def _value(row: Mapping[str, Any], column: str, where: str) -> Any:
    value: Any = row
    for name in [column] if column in row else column.split("."):
        if value is None:
            return None
        if not isinstance(value, dict) or name not in value:
            raise UserError(f"{where}: no column {column}", f"It has {', '.join(_paths(row)) or 'no text'}.")
        value = value[name]
    return value


def _text(value: Any, column: str, where: str) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, str):
        raise UserError(f"{where}: column {column} holds no text, but {type(value).__name__}", "Name another column.")
    try:
        return value.replace("\n", " ").encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise UserError(f"{where}: column {column} has half of a surrogate pair", "Write the text again.") from None
