"""Members of tar and zip archives, extracted without leaving a folder and within a bound for their size."""

import fnmatch
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from transformer_core.compressed import DAMAGED, ZIP_MARK, decompressed, most_bytes, open_bytes, too_large
from transformer_core.errors import UserError, first_line, is_of_machine

# Exceptions that tarfile and zipfile raise for damaged archives, those of their own included.
_DAMAGED_ARCHIVE = (tarfile.TarError, zipfile.BadZipFile, *DAMAGED, OSError, ValueError, LookupError, ArithmeticError, struct.error)
_LONGEST_NAME = 60
# The name of a member of an archive, and the function that opens this member and no other of the same name.
_Member = tuple[str, Callable[[], IO[bytes] | None]]


def unpack(archive: Path, patterns: Iterable[str], folder: Path) -> list[Path]:
    """Extract the member that matches each pattern from a tar or zip archive. New names keep all members inside `folder`.

    Links and devices in it count as no members. Raises `UserError` (65): the archive is damaged, encrypted, neither tar nor zip, or larger
    than the bound for its size, or a pattern matches no member or several.
    """
    paths = []
    with _members_of(archive) as members:
        for index, pattern in enumerate(patterns):
            matches = [member for member in members if fnmatch.fnmatch(member[0], pattern)]
            if len(matches) != 1:
                raise UserError(f"{archive}: {len(matches)} files in it match {pattern}, one should", "Is it the right archive?")
            name, opened = matches[0]
            paths.append(folder / f"{index}-{Path(name).name[-_LONGEST_NAME:]}")
            content = opened()
            assert content is not None  # `members` are regular files.
            with paths[-1].open("wb") as file, content:
                shutil.copyfileobj(content, file)
    return paths


def names_in(archive: Path) -> list[str]:
    """Return the names of the members of an archive. Raises `UserError` (65): as `unpack`."""
    with _members_of(archive) as members:
        return [name for name, _ in members]


@contextmanager
def _members_of(archive: Path) -> Iterator[list[_Member]]:
    with open_bytes(archive) as file:
        is_zip = file.read(len(ZIP_MARK)) == ZIP_MARK
    files: Iterable[tuple[_Member, int | None]]
    try:
        if is_zip:
            with zipfile.ZipFile(archive) as zipped:
                files = (((entry.filename, partial(zipped.open, entry)), _size_in_zip(entry)) for entry in zipped.infolist())
                yield _within(files, archive)
                return
        # Within the bound for its size: tarfile reads some headers at any length.
        with decompressed(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tarred:
            files = (((entry.name, partial(tarred.extractfile, entry)), entry.size if entry.isfile() else None) for entry in tarred)
            yield _within(files, archive)
            while stream.read(1 << 20):
                pass  # tarfile does not read to the end of the compressed stream, where its checksum is.
    except RuntimeError as error:  # So zipfile reports an encrypted member and an unknown compression.
        raise UserError(f"{archive}: cannot be unpacked ({first_line(error)})", "Unpack it yourself and name the files.") from None
    except _DAMAGED_ARCHIVE as error:
        if is_of_machine(error):
            raise
        raise UserError(f"{archive}: damaged, or neither a tar nor a zip archive", "Get it again, or pack a tar by gzip.") from None


def _size_in_zip(member: zipfile.ZipInfo) -> int | None:
    """Return the size of a file; None for a folder, a link or a device. An archive from a system without modes has 0 for them."""
    kind = stat.S_IFMT(member.external_attr >> 16)
    return member.file_size if kind in (0, stat.S_IFREG) and not member.is_dir() else None


def _within(files: Iterable[tuple[_Member, int | None]], archive: Path) -> list[_Member]:
    """Return the members with a size. Raises `UserError` (65) as soon as their sizes exceed the archive's bound together."""
    members, total, most = [], 0, most_bytes(archive)
    for member, size in files:
        total += size or 0
        if total > most:
            raise too_large(archive, most)
        members += [] if size is None else [member]
    return members
