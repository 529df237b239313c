"""Sentences out of files: plain text, columns of a table, translation memories (TMX), test sets (SGML); packed by gzip, xz or not."""

import gzip
import html
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast
from xml.etree import ElementTree

from transformer_core.corpus.text import opened
from transformer_core.errors import UserError

_SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def file_lines(path: Path, language: str = "", column: int | None = None) -> Iterator[bytes]:
    """The sentences of one language in a file, by what its name ends in, before .gz or .xz.

    Args:
        path: .tmx has a sentence for each translation unit, an empty one where the unit lacks the language; .sgm for each <seg>; any
            other name is text of a sentence a line.
        language: which one to take of a TMX file; de also takes de-AT.
        column: which one to take of tab-separated text, from 1.

    Raises:
        UserError: exit code 65; no such file, a damaged one, or a line without that column.
    """
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    try:
        with _unpacked(path) as file:
            if name.endswith(".tmx"):
                yield from _units(file, language)
            elif name.endswith((".sgm", ".sgml")):
                yield from (_in_one_line(html.unescape(found[1].decode())) for found in _SEGMENT.finditer(file.read()))
            elif column is not None:
                yield from _column(file, column, path)
            else:
                yield from (line.removesuffix(b"\n") for line in file)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError):
        raise UserError(f"{path}: damaged {'xz' if path.suffix == '.xz' else 'gzip'} file", "Get it again.") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # The last two: of an encoding that Python does not read.
        raise UserError(f"{path}: damaged {'TMX' if name.endswith('.tmx') else 'SGML'} file ({error})", "Get it again.") from None


def _unpacked(path: Path) -> BinaryIO:
    file = opened(path)
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(file))
    return cast(BinaryIO, lzma.open(file)) if path.suffix == ".xz" else file


def _units(file: BinaryIO, language: str) -> Iterator[bytes]:
    body: ElementTree.Element | None = None
    for event, element in ElementTree.iterparse(file, events=("start", "end")):
        name = element.tag.rpartition("}")[2]
        if name == "body" and event == "start":
            body = element
        if name == "tu" and event == "end":
            yield _in_one_line(_segment_in(element, language.lower()))
            if body is not None:
                body.clear()  # Of the units that were read, or they would all stay in memory.


def _segment_in(unit: ElementTree.Element, language: str) -> str:
    """The unit's text in that language, or else in a regional form of it; empty where there is none."""
    texts: dict[str, str] = {}
    for variant in unit:
        if (segment := variant.find("{*}seg")) is not None:
            tag = (variant.get(_XML_LANGUAGE) or variant.get("lang") or "").lower().replace("_", "-")
            for name in (tag, tag.partition("-")[0]):
                texts.setdefault(name, "".join(segment.itertext()))
    return texts.get(language.replace("_", "-"), "")


def _column(file: BinaryIO, column: int, path: Path) -> Iterator[bytes]:
    for number, line in enumerate(file, start=1):
        cells = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
        if len(cells) < column:
            raise UserError(f"{path}:{number}: {len(cells)} columns, but column {column} is wanted", "Are there tabs between them?")
        yield cells[column - 1]


def _in_one_line(text: str) -> bytes:
    return " ".join(text.split("\n")).strip().encode()
