"""Archives of files given as bytes; entries of local files, and what stage download writes for them."""

import io
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformer_core.corpus.sources.catalogue import Entry, FoundEntry, LocalFile, Source, Splits
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.manifest import Manifest
from transformer_core.corpus.sources.raw import write_raw
from transformer_core.corpus.sources.readers import SourceReader
from transformer_core.corpus.text import SPLITS, read_pairs

RawPairs = dict[str, list[tuple[str, str]]]


def archive_bytes(members: Iterable[tuple[str, bytes]], mode: str) -> bytes:
    """Return a tar archive (mode w, w:gz, w:xz), which also has a link to /etc/passwd, or a zip archive (mode zip)."""
    packed = io.BytesIO()
    if mode == "zip":
        with zipfile.ZipFile(packed, "w") as zipped:
            for name, content in members:
                zipped.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return packed.getvalue()
    with tarfile.open(fileobj=packed, mode=mode) as tarred:  # type: ignore[call-overload]
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tarred.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("un/link.en")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tarred.addfile(link)
    return packed.getvalue()


def files_source(stem: str, **settings: Any) -> Source:
    """The source of the files STEM.en and STEM.de beside an entry."""
    return Source(files={language: LocalFile(path=f"{stem}.{language}") for language in ("en", "de")}, **settings)


def reader_of(folder: Path, train: Source, held_out: Source | None = None, target: str = "de", **fetching: Any) -> SourceReader:
    """Read the entry `tiny` in a folder from English to `target`; without another, valid and test have the source of train."""
    parts, languages = Splits(train=[train], valid=[held_out or train], test=[held_out or train]), ["en", target]
    entry = Entry(name="tiny", languages=languages, licence="CC0", note="Copy it there.", splits=parts)
    return SourceReader(FoundEntry(entry, folder / "tiny.yaml"), "en", target, Fetcher("tiny", folder / "downloads", **fetching))


def written_raw(reader: SourceReader, folder: Path, *teachers: Any) -> tuple[Manifest, RawPairs]:
    """Write the raw text of a corpus to a new folder, and read it."""
    folder.mkdir()
    manifest = write_raw(reader, folder, *teachers)
    return manifest, {split: list(read_pairs(*(folder / f"{split}.{language}" for language in reader.direction))) for split in SPLITS}
