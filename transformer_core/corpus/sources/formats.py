"""Sentences of files in several formats: text, tab-separated tables, translation memories (TMX); archives."""

import errno
import fnmatch
import gzip
import io
import lzma
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, cast
from xml.etree import ElementTree

from transformer_core.corpus.text import Pair, aligned, decode_line, open_bytes
from transformer_core.errors import UserError, first_line

# Elements of TMX 1.4 that hold the codes of the file that was translated; only what is inside their <sub> is text.
_TMX_CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
# Exceptions that tarfile and zipfile raise for damaged archives, those of their own included.
_DAMAGED_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile, *_DAMAGED, OSError, ValueError, LookupError, ArithmeticError, struct.error)
# The beginning of a packed file, by the program that packs it.
_PACKED = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\x00", "zip": b"PK\x03\x04"}
_OPENERS: dict[str, Callable[[BinaryIO], Any]] = {"gzip": gzip.open, "xz": lzma.open}
# The program that packs a file, by the ending of its name.
_ENDINGS = {".gz": "gzip", ".xz": "xz"}
# A packed file may unpack to this many times its size plus this many bytes, far more than text needs.
LARGEST_RATIO, ALLOWED_BYTES = 100, 64 << 20
_LONGEST_NAME = 60
_ELEMENTS_LOOKED_AT = 10_000
# The name of a member of an archive, and the function that opens this member and no other of the same name.
_Member = tuple[str, Callable[[], IO[bytes] | None]]


class NoMember(UserError):
    """A pattern does not match one member of an archive, which is not damaged."""


class NoColumn(UserError):
    """A table has columns, but not the one that is wanted; it is not damaged."""


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
        path: .tmx has a sentence in each translation unit (an empty one is yielded if the unit lacks the language), any other file on each
            line.
        language: the language to read from a TMX file; de also reads de-AT.
        column: the column to read from tab-separated text, counted from 1.

    Raises:
        UserError: exit code 65; no such file, a damaged file, one that is packed and has another name, SGML, or a line without that column
            (`NoColumn` for the first line of several).
    """
    name = path.name.removesuffix(".gz").removesuffix(".xz")
    if name.endswith((".sgm", ".sgml")):
        raise UserError(f"{path}: SGML is not read", "Name the test set with sacrebleu or mtdata, or convert it to text.")
    try:
        with _decompressed(path) as file:
            if name.endswith(".tmx"):
                yield from _units(file, language)
            elif column is not None:
                yield from _column(file, column, path)
            else:
                yield from _lines(file)
    except _DAMAGED:
        raise UserError(f"{path}: damaged {'xz' if path.suffix == '.xz' else 'gzip'} file", "Get it again.") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # The last two: invalid UTF-8, or an unknown encoding.
        raise UserError(f"{path}: damaged TMX file ({error})", "Get it again.") from None


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text, packed (.gz, .xz) or not. Raises `UserError` (65): as `file_lines`, or not valid UTF-8."""
    for number, line in enumerate(file_lines(path), start=1):
        yield decode_line(line, path, number)


def _decompressed(path: Path) -> BinaryIO:
    file = open_bytes(path)
    if path.suffix in _ENDINGS:
        return _unpacked(file, path, _ENDINGS[path.suffix])
    if packer := _packer(file):
        file.close()
        raise UserError(f"{path}: packed by {packer}", "Unpack it, or end its name in .gz or .xz if it is packed so.")
    return file


def _packer(file: BinaryIO) -> str | None:
    """Return the program that packed an open file, which is not read further; None if it is not packed."""
    beginning = cast(io.BufferedReader, file).peek(max(map(len, _PACKED.values())))
    return next((packer for packer, mark in _PACKED.items() if beginning.startswith(mark)), None)


def _unpacked(file: BinaryIO, path: Path, packer: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Bounded(_OPENERS[packer](file), path)))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    return (line.removesuffix(b"\n") for line in file)


class _Bounded(io.RawIOBase):
    """The unpacked content of a file, up to the bound for its size."""

    def __init__(self, unpacked: Any, path: Path) -> None:
        self._unpacked = unpacked
        self._path = path
        self._most = _most_bytes(path)

    def readinto(self, buffer: Any) -> int:
        count: int = self._unpacked.readinto(buffer)
        if self._unpacked.tell() > self._most:
            raise _too_large(self._path, self._most)
        return count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place: int = self._unpacked.seek(offset, whence)
        return place

    def close(self) -> None:
        self._unpacked.close()
        super().close()


def _most_bytes(path: Path) -> int:
    return LARGEST_RATIO * path.stat().st_size + ALLOWED_BYTES


def _too_large(path: Path, most: int) -> UserError:
    fault = f"unpacks to more than {most:,} bytes, {LARGEST_RATIO} times its size and {ALLOWED_BYTES:,} more"
    return UserError(
        f"{path}: {fault}", "Text does not compress so well. If this is the right file, unpack it yourself and name the unpacked file."
    )


def _units(file: BinaryIO, language: str) -> Iterator[bytes]:
    body: ElementTree.Element | None = None
    for event, element in ElementTree.iterparse(file, events=("start", "end")):
        name = _local_name(element)
        if name == "body" and event == "start":
            body = element
        if name == "tu" and event == "end":
            yield _in_one_line(_segment_in(element, language.lower()))
            if body is not None:
                body.clear()  # Otherwise all units would stay in memory.


def _segment_in(unit: ElementTree.Element, language: str) -> str:
    """Return the text of a translation unit in a language, or else in a regional form of it; "" if there is none."""
    wanted, regional = language.replace("_", "-"), ""
    for variant in unit:
        segment = variant.find("{*}seg")
        tag = _language_of(variant).lower().replace("_", "-")
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


def languages_in(memory: Path) -> list[str]:
    """Return the languages that the first units of a translation memory (.tmx, not packed) name."""
    with open_bytes(memory) as file:
        elements = (element for _, element in islice(ElementTree.iterparse(file), _ELEMENTS_LOOKED_AT))
        named = {_language_of(element) for element in elements if _local_name(element) == "tuv"}
    return sorted(name for name in named if re.fullmatch(r"[\w-]{1,35}", name))


def _language_of(variant: ElementTree.Element) -> str:
    return variant.get(_XML_LANGUAGE) or variant.get("lang") or ""


def _local_name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _column(file: BinaryIO, column: int, path: Path) -> Iterator[bytes]:
    for number, line in enumerate(_lines(file), start=1):
        cells = line.removesuffix(b"\r").split(b"\t")
        if len(cells) < column:
            fault = f"{path}:{number}: {len(cells)} columns, but column {column} is wanted"
            if number == 1 and b"\t" in line.strip():  # A line without a tab may be that of another file, such as a server's page.
                raise NoColumn(fault, "Correct `column` in the catalogue entry.")
            raise UserError(fault, "Check that tabs separate the columns.")
        yield cells[column - 1]


def _in_one_line(text: str) -> bytes:
    return " ".join(text.split("\n")).strip().encode()


def unpack(archive: Path, patterns: Iterable[str], folder: Path) -> list[Path]:
    """Extract the member that matches each pattern from a tar or zip archive. New names keep all members inside `folder`.

    Links and devices in it count as no members. Raises `UserError` (65): the archive is damaged, encrypted, neither tar nor zip, or larger
    than the bound for its size, or (`NoMember`) a pattern matches no member or several.
    """
    most = _most_bytes(archive)
    files: Iterable[tuple[_Member, int | None]]
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                files = (((one.filename, partial(zipped.open, one)), _size_in_zip(one)) for one in zipped.infolist())
                return _extract(archive, _within(files, archive, most), patterns, folder)
        with _stream(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tarred:
            files = (((one.name, partial(tarred.extractfile, one)), one.size if one.isfile() else None) for one in tarred)
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


def _stream(archive: Path) -> BinaryIO:
    """Return the unpacked content of a tar archive, within the bound for its size: tarfile reads some headers at any length."""
    file = open_bytes(archive)
    packer = _packer(file)
    return _unpacked(file, archive, packer) if packer in _OPENERS else file


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
            raise _too_large(archive, most)
        members += [] if size is None else [member]
    return members


def _extract(archive: Path, members: list[_Member], patterns: Iterable[str], folder: Path) -> list[Path]:
    paths = []
    for index, pattern in enumerate(patterns):
        matches = [one for one in members if fnmatch.fnmatch(one[0], pattern)]
        if len(matches) != 1:
            raise NoMember(f"{archive}: {len(matches)} files in it match {pattern}, one should", "Is it the right archive?")
        name, opened = matches[0]
        path = folder / f"{index}-{Path(name).name[-_LONGEST_NAME:]}"
        member = opened()
        assert member is not None  # `members` are regular files.
        with path.open("wb") as file, member:
            shutil.copyfileobj(member, file)
        paths.append(path)
    return paths
