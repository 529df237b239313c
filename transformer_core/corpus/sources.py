"""The kinds of sources of a catalogue entry, each opened as a stream of sentence pairs."""

import copy
import fnmatch
import gzip
import itertools
import logging
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from transformer_core.config import PARAMS_FILE, TREES
from transformer_core.corpus.catalogue import OWN_ENTRIES, PACKAGED_ENTRIES, Address, Folder, Found, LocalFile, Source, Synthetic
from transformer_core.corpus.fetching import Fetcher, Sum, check_sum
from transformer_core.corpus.formats import file_lines
from transformer_core.corpus.text import aligned, read_lines
from transformer_core.corpus.trees import bracketed, read_tree, read_trees, words
from transformer_core.errors import UserError, configuration_error

Origin = dict[str, str]


class RawPair(NamedTuple):
    """A sentence pair as it came; bytes, because nobody has checked them yet.

    `labels` names the phenomena in it, parted by spaces, where the source knows them.
    """

    source: bytes
    target: bytes
    labels: str = ""


@dataclass(frozen=True)
class Opened:
    """A source's pairs, to be read once, and where they come from (without anything that differs from machine to machine)."""

    pairs: Iterator[RawPair]
    origins: list[Origin]


@dataclass(frozen=True)
class SourceReader:
    """Opens the sources of an entry in one direction.

    Args:
        found: the entry and its file.
        source: the language that is translated.
        target: the language it is translated into.
        fetcher: where files come from that are not local.
        workers: processes for the synthetic generator; None leaves it to it.
    """

    found: Found
    source: str
    target: str
    fetcher: Fetcher
    workers: int | None = None

    def open(self, wanted: Source, split: str) -> Opened:
        """Open one source of a split; what is not local is fetched and checked now.

        Raises:
            UserError: exit code 65 for a missing file or wrong sum, 69 and 78 as in `Fetcher.fetch`; 78 for a name that mtdata or
                sacreBLEU does not know. Iterating raises it (65) for sides of unequal length and damaged files.
        """
        if wanted.files is not None:
            return self._open_files(wanted.files)
        if wanted.folder is not None:
            return self._open_folder(wanted.folder)
        if wanted.https is not None:
            return self._open_https(wanted)
        if wanted.mtdata is not None:
            return self._open_mtdata(wanted.mtdata)
        if wanted.sacrebleu is not None:
            return self._open_sacrebleu(wanted.sacrebleu)
        if wanted.synthetic is not None:
            return self._open_synthetic(wanted.synthetic, split)
        if wanted.trees is not None:
            return self._open_trees(wanted.trees)
        raise ValueError(f"a source of kind {wanted.kinds} is not read but made from others")

    @property
    def direction(self) -> tuple[str, str]:
        """The source and the target language."""
        return self.source, self.target

    def _open_files(self, files: dict[str, LocalFile]) -> Opened:
        chosen = [files[language] for language in self.direction]
        paths = [_located(self.found.path.parent, file.path) for file in chosen]
        origins = []
        for path, file in zip(paths, chosen, strict=True):
            if not path.is_file():
                raise UserError(f"{path}: no such file", f"{self.found.path} names it.")
            checked = check_sum(path, Sum(file.sha256) if file.sha256 else None)
            origins.append({"file": file.path, "sha256": checked.sha256})
        return Opened(self._pairs_of_files(paths, [file.column for file in chosen]), origins)

    def _open_folder(self, folder: Folder) -> Opened:
        files = {}
        for language in self.direction:
            names = [f"{folder.path}/{folder.stem}.{language}{suffix}" for suffix in (".gz", ".xz", "")]
            there = [name for name in names if (self.found.path.parent / name).is_file()]
            files[language] = LocalFile(path=(there or names[-1:])[0])
        return self._open_files(files)

    def _open_https(self, wanted: Source) -> Opened:
        addresses = [(wanted.https or {})[language] for language in self.direction]
        fetched = [self.fetcher.fetch(address.url, Sum(address.sha256) if address.sha256 else None) for address in addresses]
        origins = [{"url": address.url, "sha256": file.sha256} for address, file in zip(addresses, fetched, strict=True)]
        return Opened(self._pairs_of_addresses(addresses, [file.path for file in fetched]), origins)

    def _pairs_of_addresses(self, addresses: list[Address], paths: list[Path]) -> Iterator[RawPair]:
        with self.fetcher.scratch() as unpacked:
            for number, (address, path) in enumerate(zip(addresses, paths, strict=True)):
                if address.member is not None:
                    folder = Path(unpacked) / str(number)
                    folder.mkdir()
                    (paths[number],) = unpack(path, [address.member], folder)
            yield from self._pairs_of_files(paths, [address.column for address in addresses])

    def _pairs_of_files(self, paths: list[Path], columns: list[int | None]) -> Iterator[RawPair]:
        left, right = map(file_lines, paths, self.direction, columns)
        return itertools.starmap(RawPair, aligned(left, right, *paths))

    def _open_mtdata(self, name: str) -> Opened:
        corpus = _mtdata_corpus(name, self.direction)
        fetched = [self.fetcher.fetch(url) for url in corpus.urls]
        origins = [{"mtdata": name, "url": url, "sha256": file.sha256} for url, file in zip(corpus.urls, fetched, strict=True)]
        return Opened(_pairs_of_mtdata(corpus, [file.path for file in fetched], self.fetcher), origins)

    def _open_sacrebleu(self, name: str) -> Opened:
        from sacrebleu.dataset import DATASETS

        where, language_pair = f"{self.found.path}: sacrebleu: {name}", "-".join(self.direction)
        if name not in DATASETS:
            raise configuration_error(f"{where}: sacreBLEU has no such test set", "sacrebleu --list names them.")
        dataset = DATASETS[name]
        if language_pair not in dataset.langpairs:
            raise configuration_error(f"{where}: has no direction {language_pair}", f"It has {', '.join(dataset.langpairs)}.")
        urls, digests = dataset.data or [], dataset.md5 or []
        fetched = [self.fetcher.fetch(url, Sum(digest, "md5")) for url, digest in zip(urls, digests, strict=True)]
        origins = [{"sacrebleu": name, "url": url, "sha256": file.sha256} for url, file in zip(urls, fetched, strict=True)]
        archives = [file.path.resolve().as_uri() for file in fetched]
        return Opened(_pairs_of_sacrebleu(dataset, archives, language_pair, self.fetcher), origins)

    def _open_synthetic(self, settings: Synthetic, split: str) -> Opened:
        from transformer_core.synthetic.stream import Split, generate

        if TREES in self.direction and self.direction != ("en", TREES):
            raise configuration_error(f"{PARAMS_FILE}: download.source: the trees of corpus synthetic are of en, got {self.source!r}")

        def pairs() -> Iterator[RawPair]:
            trees = self.target == TREES
            for pair in generate(cast(Split, split), settings.pairs, settings.seed, workers=self.workers, trees=trees):
                sides = {"en": pair.source, "de": pair.target}
                if trees:
                    sides = {"en": words(read_tree(pair.tree)), TREES: pair.tree}
                yield RawPair(sides[self.source].encode(), sides[self.target].encode(), " ".join(pair.phenomena))

        return Opened(pairs(), [{"generator": "synthetic", "pairs": str(settings.pairs), "seed": str(settings.seed)}])

    def _open_trees(self, pattern: str) -> Opened:
        folder = OWN_ENTRIES if self.found.path.parent == PACKAGED_ENTRIES else self.found.path.parent
        absolute = Path(pattern)
        root = Path(absolute.anchor) if absolute.is_absolute() else folder
        files = sorted(path for path in root.glob(str(absolute.relative_to(absolute.anchor))) if path.is_file())
        if not files:
            raise UserError(f"{folder / pattern}: no such file", self.found.entry.note)
        sums = "".join(check_sum(path, None).sha256 for path in files)
        origin = {"trees": pattern, "files": str(len(files)), "sha256": sha256(sums.encode()).hexdigest()}
        return Opened(itertools.chain.from_iterable(map(_pairs_of_trees, files)), [origin])


def _pairs_of_trees(path: Path) -> Iterator[RawPair]:
    try:
        for _, tree in read_trees(read_lines(path)):
            if tree is not None:
                yield RawPair(words(tree).encode(), bracketed(tree).encode())
    except ValueError as error:
        raise UserError(f"{path}:{error}", "A tree is (S (NP (DT The) (NN dog)) (VP (VBZ barks)))") from None


def _located(folder: Path, name: str) -> Path:
    """A file named from a folder, as seen from the working directory: messages say own.en, not corpora/../own.en.

    The last part is not resolved, because its suffix says whether it is gzipped.
    """
    path = folder / name
    absolute = path.parent.resolve() / path.name
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute


def _pairs_of_text(source: Path, target: Path) -> Iterator[RawPair]:
    return itertools.starmap(RawPair, aligned(file_lines(source), file_lines(target), source, target))


@dataclass(frozen=True)
class _MtdataCorpus:
    """What mtdata knows of a corpus: its addresses, the files wanted from an archive, and whether its sides stand the other way round."""

    entry: Any
    urls: list[str]
    swapped: bool


def _mtdata_corpus(name: str, direction: tuple[str, str]) -> _MtdataCorpus:
    # mtdata prints what it does through the root logger unless that has a handler already; its first import builds an index for a while.
    logging.basicConfig(level=logging.WARNING)
    from mtdata.index import INDEX  # type: ignore[import-untyped]
    from mtdata.iso.bcp47 import bcp47  # type: ignore[import-untyped]

    entry = next((entry for entry in INDEX.get_entries() if str(entry.did) == name), None)
    if entry is None:
        raise configuration_error(f"mtdata: {name}: mtdata has no such corpus", "mtdata list -id names them.")
    urls = [entry.url] if isinstance(entry.url, str) else list(entry.url)
    if entry.in_ext == "opus_xces" or any("//huggingface.co/" in url for url in urls):
        raise configuration_error(f"mtdata: {name}: comes in a form that is not read here", "Get it with mtdata and name its files.")
    wanted = [bcp47(language) for language in direction]
    for swapped, languages in ((False, wanted), (True, wanted[::-1])):
        if all(language.is_compatible(other) for language, other in zip(languages, entry.did.langs, strict=True)):
            return _MtdataCorpus(entry, urls, swapped)
    raise configuration_error(f"mtdata: {name}: is not in the languages {' and '.join(direction)}")


def _pairs_of_mtdata(corpus: _MtdataCorpus, files: list[Path], fetcher: Fetcher) -> Iterator[RawPair]:
    from mtdata.parser import Parser  # type: ignore[import-untyped]

    with fetcher.scratch() as unpacked:
        entry = corpus.entry
        if entry.is_archive:
            files = unpack(files[0], entry.in_paths, Path(unpacked))
        if (entry.in_ext or entry.ext) == "txt" and len(files) == 2:
            pairs: Iterable[RawPair] = _pairs_of_text(*files)  # mtdata would replace invalid UTF-8 in silence
        else:
            rows = Parser(files, ext=entry.in_ext, ent=entry).read_segs(show_pbar=False)
            pairs = (RawPair(_in_one_line(row[0]), _in_one_line(row[1])) for row in rows)
        for pair in pairs:
            yield RawPair(pair.target, pair.source) if corpus.swapped else pair


def _in_one_line(segment: str) -> bytes:
    return segment.replace("\n", " ").encode()


def unpack(archive: Path, patterns: Iterable[str], folder: Path) -> list[Path]:
    """Copy the one member that each pattern matches out of a tar or zip archive, under names of our own, so that none can escape.

    Raises:
        UserError: exit code 65; damaged, neither tar nor zip, or a pattern matches no member or several.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                return _copy_members(archive, zipped.namelist(), zipped.open, patterns, folder)
        with tarfile.open(archive) as tarred:
            names = [member.name for member in tarred if member.isfile()]
            copied = _copy_members(archive, names, tarred.extractfile, patterns, folder)
            while tarred.fileobj is not None and tarred.fileobj.read(1 << 20):
                pass  # The check sum of what is packed stands at the end, where tar does not look.
            return copied
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError):
        raise UserError(f"{archive}: damaged, or neither a tar nor a zip archive", "Get it again.") from None


def _copy_members(
    archive: Path, names: list[str], opened: Callable[[str], IO[bytes] | None], patterns: Iterable[str], folder: Path
) -> list[Path]:
    paths = []
    for index, pattern in enumerate(patterns):
        matches = fnmatch.filter(names, pattern)
        if len(matches) != 1:
            raise UserError(f"{archive}: {len(matches)} files in it match {pattern}, one should", "Is it the right archive?")
        path = folder / f"{index}-{Path(matches[0]).name}"
        with path.open("wb") as copied, opened(matches[0]) as member:  # type: ignore[union-attr]  # None is for members that are no files
            shutil.copyfileobj(member, copied)
        paths.append(path)
    return paths


def _pairs_of_sacrebleu(dataset: Any, archives: list[str], language_pair: str, fetcher: Fetcher) -> Iterator[RawPair]:
    """The first reference stands for the target.

    sacreBLEU parses; the archives are ours, because its own cache takes a half-downloaded one for whole and knows no mirror.
    """
    with fetcher.scratch() as unpacked:
        here = copy.copy(dataset)
        here.data, here._outdir, here._rawdir = archives, unpacked, str(Path(unpacked) / "raw")
        source, reference = here.get_source_file(language_pair), here.get_reference_files(language_pair)[0]
        yield from _pairs_of_text(Path(source), Path(reference))
