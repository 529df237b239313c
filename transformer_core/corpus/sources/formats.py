"""Sentences of files in several formats: text, tab-separated tables, translation memories (TMX); archives."""

import errno
import fnmatch
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from transformer_core.compressed import DAMAGED, decompressed, most_bytes, open_decompressed, too_large
from transformer_core.corpus.text import Pair, aligned, read_raw_lines
from transformer_core.errors import UserError, first_line

# Elements of TMX 1.4 that hold the codes of the file that was translated; only what is inside their <sub> is text.
_TMX_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
# Exceptions that tarfile and zipfile raise for damaged archives, those of their own included.
_DAMAGED_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile, *DAMAGED, OSError, ValueError, LookupError, ArithmeticError, struct.error)
_LONGEST_NAME = 60
# The name of a member of an archive, and the function that opens this member and no other of the same name.
_Member = tuple[str, Callable[[], IO[bytes] | None]]


def file_pairs(
    paths: Sequence[Path], languages: Sequence[str] = ("", ""), columns: Sequence[int | None] = (None, None)
) -> Iterator[Pair[bytes]]:
    """Yield the pairs of a source and a target file, read by `file_lines`. Both may be the same file.

    Raises `UserError` (65): as `file_lines`; also for sides of unequal length, after the shorter one has ended.
    """
    source, target = map(file_lines, paths, languages, columns)
    return aligned(source, target, *paths)


def file_lines(path: Path, language: str = "", column: int | None = None) -> Iterator[bytes]:
    """Yield the sentences of one language in a file. The suffix of its name, before .gz or .xz, tells the format.

    Args:
        path: .tmx has a sentence in each translation unit (empty if the unit lacks the language), any other file on each line.
        language: the language to read from a TMX file; de also reads de-AT.
        column: the column to read from tab-separated text, counted from 1.

    Raises:
        UserError: exit code 65; as `decompressed`, also for damaged TMX, SGML, or a line without that column.
    """
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    if name.endswith((".sgm", ".sgml")):
        raise UserError(f"{path}: SGML is not read", "Name the test set with sacrebleu or mtdata, or convert it to text.")
    if name.endswith(".tmx"):
        return _units(path, language)
    return read_raw_lines(path) if column is None else _cells(path, column)


def _units(path: Path, language: str) -> Iterator[bytes]:
    body: ElementTree.Element | None = None
    try:
        with decompressed(path) as file:
            for event, element in ElementTree.iterparse(file, events=("start", "end")):
                name = _local_name(element)
                if name == "body" and event == "start":
                    body = element
                if name == "tu" and event == "end":
                    yield _segment_in(element, language.lower()).replace("\n", " ").strip().encode()
                    if body is not None:
                        body.clear()  # Otherwise all units would stay in memory.
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # The last two: invalid UTF-8, or an unknown encoding.
        raise UserError(f"{path}: damaged TMX file ({error})", "Get it again.") from None


def _segment_in(unit: ElementTree.Element, language: str) -> str:
    """Return the text of a translation unit in a language, or else in a regional form of it; "" if there is none."""
    wanted, regional = language.replace("_", "-"), ""
    for variant in unit:
        segment = variant.find("{*}seg")
        tag = (variant.get(_XML_LANGUAGE) or variant.get("lang") or "").lower().replace("_", "-")
        if segment is not None and tag == wanted:
            return _text_of(segment)
        if segment is not None and tag.startswith(f"{wanted}-"):
            regional = regional or _text_of(segment)
    return regional


def _text_of(segment: ElementTree.Element) -> str:
    """Return the text of a <seg>, and remove the codes in it."""
    for element in segment.iter():
        if _local_name(element) in _TMX_CODES:
            element.text = None
            for child in element:
                child.tail = None
    return "".join(segment.itertext())


def _local_name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _cells(path: Path, column: int) -> Iterator[bytes]:
    for number, line in enumerate(read_raw_lines(path), start=1):
        cells = line.removesuffix(b"\r").split(b"\t")
        if len(cells) < column:
            fault = f"{path}:{number}: {len(cells)} columns, but column {column} is wanted"
            raise UserError(fault, "Check that tabs separate the columns, and `column` in the catalogue entry.")
        yield cells[column - 1]


def unpack(archive: Path, patterns: Iterable[str], folder: Path) -> list[Path]:
    """Extract the member that matches each pattern from a tar or zip archive. New names keep all members inside `folder`.

    Links and devices in it count as no members. Raises `UserError` (65): the archive is damaged, encrypted, neither tar nor zip, or larger
    than the bound for its size, or a pattern matches no member or several.
    """
    most = most_bytes(archive)
    files: Iterable[tuple[_Member, int | None]]
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                files = (((entry.filename, partial(zipped.open, entry)), _size_in_zip(entry)) for entry in zipped.infolist())
                return _extract(archive, _within(files, archive, most), patterns, folder)
        # Within the bound for its size: tarfile reads some headers at any length.
        with open_decompressed(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tarred:
            files = (((entry.name, partial(tarred.extractfile, entry)), entry.size if entry.isfile() else None) for entry in tarred)
            paths = _extract(archive, _within(files, archive, most), patterns, folder)
            while stream.read(1 << 20):
                pass  # tarfile does not read to the end of the compressed stream, where its checksum is.
            return paths
    except RuntimeError as error:  # So zipfile reports an encrypted member and an unknown compression.
        raise UserError(f"{archive}: cannot be unpacked ({first_line(error)})", "Unpack it yourself and name the files.") from None
    except _DAMAGED_ARCHIVE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # An error of this machine, such as a full disk.
            raise
        raise UserError(f"{archive}: damaged, or neither a tar nor a zip archive", "Get it again.") from None


def _size_in_zip(member: zipfile.ZipInfo) -> int | None:
    """Return the size of a file; None for a folder, a link or a device. An archive from a system without modes has 0 for them."""
    kind = stat.S_IFMT(member.external_attr >> 16)
    return member.file_size if kind in (0, stat.S_IFREG) and not member.is_dir() else None


def _within(files: Iterable[tuple[_Member, int | None]], archive: Path, most: int) -> list[_Member]:
    """Return the members with a size. Raises `UserError` (65) as soon as their sizes exceed `most` together."""
    members, total = [], 0
    for member, size in files:
        total += size or 0
        if total > most:
            raise too_large(archive, most)
        members += [] if size is None else [member]
    return members


def _extract(archive: Path, members: list[_Member], patterns: Iterable[str], folder: Path) -> list[Path]:
    paths = []
    for index, pattern in enumerate(patterns):
        matches = [member for member in members if fnmatch.fnmatch(member[0], pattern)]
        if len(matches) != 1:
            raise UserError(f"{archive}: {len(matches)} files in it match {pattern}, one should", "Is it the right archive?")
        name, opened = matches[0]
        path = folder / f"{index}-{Path(name).name[-_LONGEST_NAME:]}"
        content = opened()
        assert content is not None  # `members` are regular files.
        with path.open("wb") as file, content:
            shutil.copyfileobj(content, file)
        paths.append(path)
    return paths
