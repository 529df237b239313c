"""Readers of the kinds of sources in a catalogue entry; each is opened as a stream of sentence pairs."""

import copy
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from glob import glob
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from transformer_core.corpus.sources.archives import unpack
from transformer_core.corpus.sources.catalogue import Address, FoundEntry, LocalFile, Part, Source
from transformer_core.corpus.sources.fetching import Fetched, Fetcher, Sum, check_sum
from transformer_core.corpus.sources.formats import Side, file_pairs
from transformer_core.corpus.sources.manifest import Origin
from transformer_core.corpus.text import Pair, read_raw_pairs
from transformer_core.errors import UserError, configuration_error, did_you_mean, first_line, is_out_of_memory, without_logins
from transformer_core.tasks import TARGETS, TREES, tag_of, task_of


class OpenedSource(NamedTuple):
    """The pairs of a source as bytes, which can be read once; and names and sums of its files, the same on every machine."""

    pairs: Iterator[Pair[bytes]]
    origins: list[Origin]


@dataclass(frozen=True)
class SourceReader:
    """A reader of the sources of an entry, from one language to another; `tagged` if that is one of several directions in a model."""

    found: FoundEntry
    source: str
    target: str
    fetcher: Fetcher
    tagged: bool = False

    def open(self, wanted: Source) -> OpenedSource:
        """Open a source of any kind but `translated`. Files that are not local are fetched before this returns.

        Raises `UserError`: 65 for a missing file or a wrong sum; 69 and 78 as `Fetcher.fetch`; 78 also for a name or language that mtdata
        or sacreBLEU does not have. Iteration raises it (65) for sides of unequal length and for damaged files.
        """
        (kind,) = wanted.kinds
        opened: OpenedSource = getattr(self, f"_open_{kind}")(getattr(wanted, kind))
        return opened

    @property
    def direction(self) -> tuple[str, str]:
        return self.source, self.target

    def readers_of(self, wanted: Source) -> list["SourceReader"]:
        """Return the reader of a source: this one, or of several directions one for each that the source serves."""
        entry = self.found.entry
        if self.target == TARGETS:
            return [replace(self, source=source, target=target, tagged=True) for source, target in entry.directions_of(wanted)]
        if not entry.directions:
            return [self]
        has_both = {*self.direction} <= {*(wanted.files or wanted.https or self.direction)}
        return [self] if has_both and wanted.direction in (None, "-".join(self.direction)) else []

    def tags_of(self, wanted: Source) -> list[str]:
        """Return what stands before each source sentence of a source in this direction."""
        return [*([tag_of(self.target)] if self.tagged else []), *([wanted.tag] if wanted.tag else [])]

    def local_files(self, wanted: Source) -> list[Path]:
        """Return the paths of a source's local files; named files may be missing. Sources of other kinds have none."""
        if wanted.trees is not None:
            return tree_files(self.found, wanted.trees)
        return [located(self.found.path.parent, wanted.files[language].path) for language in self.direction if wanted.files]

    def _open_files(self, files: dict[str, LocalFile]) -> OpenedSource:
        chosen = [files[language] for language in self.direction]
        paths = [located(self.found.path.parent, file.path) for file in chosen]
        given_in = f"{self.found.path}: transformer-core data update {self.found.entry.name}"
        origins = []
        for path, file in zip(paths, chosen, strict=True):
            if not path.is_file():
                raise UserError(f"{path}: no such file", f"{self.found.path} names it.")
            checked = check_sum(path, Sum(file.sha256, given_in=given_in) if file.sha256 else None)
            origins.append({"file": file.path, "sha256": checked.sha256})
        return OpenedSource(self._pairs(chosen, paths), origins)

    def _open_https(self, addresses: dict[str, Address]) -> OpenedSource:
        chosen = [addresses[language] for language in self.direction]
        fetched = [self.fetcher.fetch(address.url, Sum(address.sha256) if address.sha256 else None) for address in chosen]
        pairs = self._naming_downloads(self._pairs(chosen, [file.path for file in fetched]))
        return OpenedSource(pairs, _origins([address.url for address in chosen], fetched))

    def _naming_downloads(self, pairs: Iterator[Pair[bytes]]) -> Iterator[Pair[bytes]]:
        """Yield the pairs of fetched files; an error in them also tells how to fetch the files again."""
        try:
            yield from pairs
        except UserError as error:
            again = f"To fetch the files again, remove {self.fetcher.downloads / self.fetcher.corpus}."
            raise UserError(error.message, f"{error.remedy} {again}", error.exit_code) from None

    def _pairs(self, parts: Sequence[Part], paths: Iterable[Path]) -> Iterator[Pair[bytes]]:
        source, target = map(side_of, parts, paths, self.direction)
        return file_pairs(source, target, self.fetcher.scratch)

    def _open_mtdata(self, name: str) -> OpenedSource:
        entry, urls, swapped = _mtdata_corpus(name, self.direction, self.found.path)
        fetched = [self.fetcher.fetch(url) for url in urls]
        pairs = _pairs_of_mtdata(entry, swapped, [file.path for file in fetched], self.fetcher)
        return OpenedSource(self._naming_downloads(pairs), _origins(urls, fetched, mtdata=name))

    def _open_sacrebleu(self, name: str) -> OpenedSource:
        from sacrebleu.dataset import DATASETS

        where, language_pair = f"{self.found.path}: sacrebleu: {name}", "-".join(self.direction)
        if name not in DATASETS:
            remedy = did_you_mean(name, DATASETS, "sacrebleu --list names them.")
            raise configuration_error(f"{where}: sacreBLEU has no such test set", remedy)
        dataset = DATASETS[name]
        if language_pair not in dataset.langpairs:
            raise configuration_error(f"{where}: has no direction {language_pair}", f"It has {', '.join(dataset.langpairs)}.")
        urls, digests = dataset.data or [], dataset.md5 or []
        fetched = [self.fetcher.fetch(url, Sum(digest, "md5")) for url, digest in zip(urls, digests, strict=True)]
        pairs = _pairs_of_sacrebleu(dataset, [file.path for file in fetched], language_pair, self.fetcher)
        return OpenedSource(pairs, _origins(urls, fetched, sacrebleu=name))

    def _open_trees(self, pattern: str) -> OpenedSource:
        files = tree_files(self.found, pattern)
        if not files:
            raise UserError(f"{self.found.folder / pattern}: no such file", self.found.entry.note)
        sums = "".join(check_sum(path, None).sha256 for path in files)
        origin = {"trees": pattern, "files": str(len(files)), "sha256": sha256(sums.encode()).hexdigest()}
        read_file = task_of(TREES).read_file
        assert read_file is not None
        return OpenedSource((Pair(*pair) for path in files for pair in read_file(path)), [origin])


def tree_files(found: FoundEntry, pattern: str) -> list[Path]:
    """Return the files that the pattern of an entry's source `trees` names: beside the entry, or else in its folder."""
    for root in (found.path.parent, found.folder):
        names = glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207  # `Path.glob` takes no absolute pattern.
        if files := sorted(path for path in map(root.joinpath, names) if path.is_file()):
            return files
    return []


def _origins(urls: list[str], fetched: list[Fetched], **kind: str) -> list[Origin]:
    return [{**kind, "url": without_logins(url), "sha256": file.sha256} for url, file in zip(urls, fetched, strict=True)]


def side_of(part: Part, path: Path, language: str) -> Side:
    """Return the side that a part of an entry names, at the path of its file."""
    return Side(path, language, part.column, part.member)


def located(folder: Path, name: str) -> Path:
    """Return the path of a file named from a folder: relative if it is below the working directory, so that messages name own.en.

    A link is not followed to its file, because the suffix of the name tells the format.
    """
    path = folder / name
    absolute = path.parent.resolve() / path.name
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def named_from(folder: Path, file: Path) -> str:
    """Return the name of a file as seen from a folder, the inverse of `located`: relative if it is below the working directory."""
    absolute = file.parent.resolve() / file.name
    if absolute.is_relative_to(Path.cwd().resolve()):
        return Path(os.path.relpath(absolute, folder.resolve())).as_posix()
    return str(absolute)


def _mtdata_corpus(name: str, direction: tuple[str, str], path: Path) -> tuple[Any, list[str], bool]:
    """Return mtdata's entry of a corpus, its addresses, and whether its sides must be swapped. Raises `UserError` (78)."""
    # mtdata configures the root logger unless that has a handler. Its first import builds an index, which takes about 30 seconds.
    logging.basicConfig(level=logging.WARNING)
    from mtdata.index import INDEX  # type: ignore[import-untyped]
    from mtdata.iso.bcp47 import bcp47  # type: ignore[import-untyped]

    where = f"{path}: mtdata: {name}"
    entry = next((entry for entry in INDEX.get_entries() if str(entry.did) == name), None)
    if entry is None:
        # mtdata has too many corpora to compare the name with all of them, so only those of the same languages.
        names, codes = [str(other.did) for other in INDEX.get_entries()], set(name.split("-")[-2:])
        alike = [other for other in names if set(other.split("-")[-2:]) == codes]
        raise configuration_error(f"{where}: mtdata has no such corpus", did_you_mean(name, alike, "mtdata list -id names them."))
    urls = [entry.url] if isinstance(entry.url, str) else list(entry.url)
    if entry.in_ext == "opus_xces" or any("//huggingface.co/" in url for url in urls):
        remedy = "Fetch it with mtdata and name the files in the entry."
        raise configuration_error(f"{where}: has a format that this program does not read", remedy)
    if len(entry.did.langs) != 2:
        raise configuration_error(f"{where}: has one language", f"Name its file with https: {urls[0]}")
    try:
        wanted = [bcp47(language) for language in direction]
    except (ValueError, AssertionError):
        fault = f"{where}: mtdata does not know the languages {' and '.join(direction)}"
        raise configuration_error(fault, "It knows codes such as en, eng and en-GB.") from None
    for swapped, languages in ((False, wanted), (True, wanted[::-1])):
        if all(language.is_compatible(other) for language, other in zip(languages, entry.did.langs, strict=True)):
            return entry, urls, swapped
    raise configuration_error(f"{where}: does not have the languages {' and '.join(direction)}")


def _pairs_of_mtdata(entry: Any, swapped: bool, files: list[Path], fetcher: Fetcher) -> Iterator[Pair[bytes]]:
    with fetcher.scratch() as unpacked:
        if entry.is_archive:
            files = unpack(files[0], entry.in_paths, Path(unpacked))
        form, columns = entry.in_ext or entry.ext, entry.cols or (0, 1)
        # Texts and tables are read here, because mtdata's parser would replace invalid UTF-8 without an error.
        pairs: Iterable[Pair[bytes]]
        if form in ("txt", "txt.gz", "txt.xz") and len(files) == 2:
            pairs = read_raw_pairs(*files)
        elif form.startswith("tsv") and len(columns) == 2:
            sides = [[Side(file, column=str(column + 1)) for column in columns] for file in files]
            pairs = chain.from_iterable(file_pairs(source, target) for source, target in sides)
        else:
            pairs = _parsed_by_mtdata(entry, files)
        for pair in pairs:
            yield Pair(pair.target, pair.source) if swapped else pair


def _parsed_by_mtdata(entry: Any, files: list[Path]) -> Iterator[Pair[bytes]]:
    """Yield the pairs that mtdata's parser finds. Raises `UserError` (65) for any error but one of memory or disk."""
    from mtdata.parser import Parser  # type: ignore[import-untyped]

    try:
        for row in Parser(files, ext=entry.in_ext, ent=entry).read_segs(show_pbar=False):
            yield Pair(*(segment.replace("\n", " ").encode() for segment in row[:2]))
    except Exception as error:
        if is_out_of_memory(error) or (isinstance(error, OSError) and error.errno):
            raise
        fault = f"{files[0]}: mtdata's parser cannot read it ({first_line(error)})"
        raise UserError(fault, "Get it again, or convert it to text and name that in the entry.") from None


def _pairs_of_sacrebleu(dataset: Any, archives: list[Path], language_pair: str, fetcher: Fetcher) -> Iterator[Pair[bytes]]:
    """Yield the sentences and their first reference, as sacreBLEU extracts them from the fetched archives.

    sacreBLEU's own downloads are not used, because they take an incomplete file for a complete one and know no mirror.
    """
    with fetcher.scratch() as unpacked:
        here = copy.copy(dataset)
        here.data, here._outdir, here._rawdir = [path.resolve().as_uri() for path in archives], unpacked, str(Path(unpacked) / "raw")
        source, reference = here.get_source_file(language_pair), here.get_reference_files(language_pair)[0]
        yield from read_raw_pairs(Path(source), Path(reference))
