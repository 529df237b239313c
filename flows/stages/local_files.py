"""Stage local_files: the local files of the corpus have their recorded sums, and DVC sees when they change.

The stage depends on a folder of links to the files, so `dvc status` and `dvc repro` notice a change. No stage depends on this one: without
the files (on another machine, in a clone) the other stages are restored from DVC's cache. Files that come with the package are no local
files here: the code that stage download depends on has them.
"""

from pathlib import Path

from flows.process.paths import LOCAL_FILES, MANIFEST, RAW, STATE
from flows.record.documents import read_output
from transformer_core.config import Params
from transformer_core.corpus.sources.catalogue import PACKAGED_ENTRIES, Source, check_direction, find_entry
from transformer_core.corpus.sources.fetching import Fetcher
from transformer_core.corpus.sources.manifest import Origin
from transformer_core.corpus.sources.readers import SourceReader, named_from
from transformer_core.corpus.sources.translated import TranslatedSource
from transformer_core.errors import UserError


def run(params: Params) -> str:
    """Check the local files of `download.corpus` that are on this machine, and link them."""
    wanted = params.download
    found = find_entry(wanted.corpus)
    check_direction(found, wanted.source, wanted.target)
    reader = SourceReader(found, wanted.source, wanted.target, Fetcher(found.entry.name, STATE / "downloads"))
    linked: list[Path] = []
    missing = 0
    for split, sources in found.entry.sources.items():
        for part, named_source in ((part, one) for one in sources for part in reader.readers_of(one)):
            translated = TranslatedSource(named_source.translated, part) if named_source.translated else None
            named = translated.local_files() if translated else part.local_files(named_source)
            files = [file for file in named if not file.resolve().is_relative_to(PACKAGED_ENTRIES)]
            if not files:
                continue
            if all(file.is_file() for file in files):
                origins = translated.local_origins() if translated else part.open(named_source).origins
                check(reader, split, translated.sources if translated else [named_source], origins)
                linked += files
            else:
                missing += 1
    link(list(dict.fromkeys(linked)))
    closing = f"{LOCAL_FILES}: {wanted.corpus}, local files: {len(set(linked)):,}"
    return f"{closing}; not checked, because not all files are here: {missing} of its sources" if missing else closing


def check(reader: SourceReader, split: str, sources: list[Source], origins: list[Origin]) -> None:
    """Refuse local files that changed: since their sums were written to the entry, or, without sums, since data/raw was made.

    `sources` are those whose files are among `origins`: of a source that is translated, those of the other entry. Raises `UserError` (65).
    """
    pinned = {file.path for source in sources for file in (source.files or {}).values() if file.sha256}
    used: dict[tuple[str, str], str] = {}  # The sums of the local files that data/raw was made from, unless it is of another corpus.
    if MANIFEST.exists() and (manifest := read_output(MANIFEST))["corpus"] == reader.found.entry.name:
        used = {(origin["split"], name): origin["sha256"] for origin in manifest["origin"] if (name := _name(origin))}
    for origin in origins:  # Opening a source checks the entry's sums.
        name = _name(origin)
        if name not in pinned and used.get((split, name), origin["sha256"]) != origin["sha256"]:
            raise UserError(f"{reader.found.path}: {name} has changed since {RAW} was made", "Make it again: dvc repro --force download")


def _name(origin: Origin) -> str:
    """Return the name of a local file, pattern or model; empty for another origin."""
    return origin.get("file") or origin.get("trees") or origin.get("model") or ""


def link(files: list[Path]) -> None:
    """Replace the links by those to `files`."""
    LOCAL_FILES.mkdir(exist_ok=True)
    for old in LOCAL_FILES.iterdir():
        if old.is_symlink():
            old.unlink()
    for number, file in enumerate(files, start=1):
        (LOCAL_FILES / f"{number}-{file.name}").symlink_to(named_from(LOCAL_FILES, file))
