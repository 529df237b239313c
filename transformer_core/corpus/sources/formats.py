"""Sentences of files in several formats: text, tab-separated tables, translation memories (TMX), test sets (SGML); archives."""

import fnmatch
import gzip
import html
import lzma
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast
from xml.etree import ElementTree

from transformer_core.corpus.text import Pair, aligned, open_bytes
from transformer_core.errors import UserError

_SEGMENT = re.compile(rb"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


def file_pairs(
    paths: Sequence[Path], languages: Sequence[str] = ("", ""), columns: Sequence[int | None] = (None, None)
) -> Iterator[Pair[bytes]]:
    """Yield the pairs of a source and a target file, read by `file_lines`. Both may be the same file.

    Raises:
        UserError: exit code 65, as `file_lines`; also for sides of unequal length, after the shorter one has ended.
    """
    source, target = map(file_lines, paths, languages, columns)
    return aligned(source, target, *paths)


def file_lines(path: Path, language: str = "", column: int | None = None) -> Iterator[bytes]:
    """Yield the sentences of one language in a file. The suffix of its name, before .gz or .xz, tells the format.

    Args:
        path: .tmx has a sentence in each translation unit (an empty one is yielded if the unit lacks the language), .sgm or .sgml in each
            <seg>, any other file on each line.
        language: the language to read from a TMX file; de also reads de-AT.
        column: the column to read from tab-separated text, counted from 1.

    Raises:
        UserError: exit code 65; no such file, a damaged file, or a line without that column.
    """
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    try:
        with _decompressed(path) as file:
            if name.endswith(".tmx"):
                yield from _units(file, language)
            elif name.endswith((".sgm", ".sgml")):
                yield from (_in_one_line(html.unescape(found[1].decode())) for found in _SEGMENT.finditer(file.read()))
            elif column is not None:
                yield from _column(file, column, path)
            else:
                yield from (line.removesuffix(b"\n") for line in file)
    except _DAMAGED:
        raise UserError(f"{path}: damaged {'xz' if path.suffix == '.xz' else 'gzip'} file", "Get it again.") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # The last two: invalid UTF-8, or an unknown encoding.
        raise UserError(f"{path}: damaged {'TMX' if name.endswith('.tmx') else 'SGML'} file ({error})", "Get it again.") from None


def _decompressed(path: Path) -> BinaryIO:
    file = open_bytes(path)
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
                body.clear()  # Otherwise all units would stay in memory.


def _segment_in(unit: ElementTree.Element, language: str) -> str:
    """Return the text of a translation unit in a language, or else in a regional form of it; "" if there is none."""
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


def unpack(archive: Path, patterns: Iterable[str], folder: Path) -> list[Path]:
    """Extract the member that matches each pattern from a tar or zip archive. New names keep all members inside `folder`.

    Raises:
        UserError: exit code 65; the archive is damaged or neither tar nor zip, or a pattern matches no member or several.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                return _extract(archive, zipped.namelist(), zipped.open, patterns, folder)
        with tarfile.open(archive) as tarred:
            names = [member.name for member in tarred if member.isfile()]
            paths = _extract(archive, names, tarred.extractfile, patterns, folder)
            while tarred.fileobj is not None and tarred.fileobj.read(1 << 20):
                pass  # tarfile does not read to the end of the compressed stream, where its checksum is.
            return paths
    except (tarfile.TarError, zipfile.BadZipFile, *_DAMAGED):
        raise UserError(f"{archive}: damaged, or neither a tar nor a zip archive", "Get it again.") from None


def _extract(
    archive: Path, names: list[str], member_named: Callable[[str], IO[bytes] | None], patterns: Iterable[str], folder: Path
) -> list[Path]:
    paths = []
    for index, pattern in enumerate(patterns):
        matches = fnmatch.filter(names, pattern)
        if len(matches) != 1:
            raise UserError(f"{archive}: {len(matches)} files in it match {pattern}, one should", "Is it the right archive?")
        path = folder / f"{index}-{Path(matches[0]).name}"
        member = member_named(matches[0])
        assert member is not None  # `names` are those of regular files.
        with path.open("wb") as file, member:
            shutil.copyfileobj(member, file)
        paths.append(path)
    return paths
