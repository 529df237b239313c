"""The catalogue: the sources of each corpus, by name. One YAML file for each entry, in the package or in the user's `corpora/`."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from transformer_core.config import (
    PARAMS_FILE,
    TREES,
    Count,
    Language,
    Name,
    NonNegativeInt,
    PositiveInt,
    Section,
    combined_error,
    read_yaml,
    validate_document,
)
from transformer_core.errors import UserError, configuration_error

OWN_ENTRIES = Path("corpora")
PACKAGED_ENTRIES = Path(__file__).with_name("catalogue")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="a SHA-256 sum: 64 hexadecimal digits, small letters")]


_LONGEST_NAME = 200


def _check_path(path: str) -> str:
    """Refuse a path with a part that is too long for a file system, with room for suffixes."""
    if any(len(part.encode()) > _LONGEST_NAME for part in path.split("/")):
        raise ValueError("a part is too long")
    return path


def _check_address(url: str) -> str:
    """Refuse an address whose last part cannot be the name of a file."""
    name = unquote(urlsplit(url).path)
    if not (url + name).isprintable():
        raise ValueError("control characters")
    _check_path(name)
    return url


def _check_pattern(pattern: str) -> str:
    """Refuse a pattern that pathlib does not read."""
    if any("**" in part and part != "**" for part in pattern.split("/")) or not pattern.strip("/."):
        raise ValueError("no pattern")
    return _check_path(pattern)


FilePath = Annotated[Name, AfterValidator(_check_path), Field(description="a name")]


TreePattern = Annotated[Name, AfterValidator(_check_pattern), Field(description="a file of bracketed trees, or a pattern with * and ?")]


class LocalFile(Section):
    """A file of one language, or of several languages (see `formats.file_lines`).

    A relative path starts at the entry's folder; `column` is that of tab-separated text, from 1.
    """

    path: FilePath
    sha256: Sha256 | None = None
    column: PositiveInt | None = None


class Folder(Section):
    """A folder with STEM.LANGUAGE for each language, compressed (.gz, .xz) or not."""

    path: FilePath
    stem: FilePath


class Address(Section):
    """A file on the web, read as a `LocalFile`; without a sum, that of the first download is locked.

    `member` is a pattern (*, ?) for the path of one file in a tar or zip archive at that address.
    """

    url: Annotated[
        str,
        AfterValidator(_check_address),
        Field(pattern=r"^https?://[^\s/]", max_length=2_000, description="an address that begins with https:// or http://"),
    ]
    sha256: Sha256 | None = None
    member: Name | None = None
    column: PositiveInt | None = None


class Synthetic(Section):
    """Pairs of the generator in `transformer_core.synthetic`; the same seed may serve all splits, they stay disjoint."""

    pairs: PositiveInt
    seed: NonNegativeInt


class Source(Section):
    """Where sentence pairs come from: exactly one of the kinds.

    Attributes:
        trees: files of bracketed trees as in the Penn Treebank, over one or several lines; the source is their words, the target `tree`. A
            relative pattern starts at the entry's folder, or at `corpora/` for a packaged entry.
        holdout: number of pairs to take out of train; the only source of a valid or test split.
    """

    files: Annotated[dict[str, LocalFile], Field(description="for each language a path, and perhaps sha256 and column")] | None = None
    folder: Folder | None = None
    https: Annotated[dict[str, Address], Field(description="for each language a url, and perhaps sha256, member, column")] | None = None
    mtdata: Annotated[str, Field(description="a corpus in mtdata, GROUP-NAME-VERSION-LANGUAGE-LANGUAGE")] | None = None
    sacrebleu: Annotated[str, Field(description="the name of a test set in sacreBLEU")] | None = None
    synthetic: Synthetic | None = None
    trees: TreePattern | None = None
    holdout: PositiveInt | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds that are given; one in a source of a valid entry."""
        return [name for name in Source.model_fields if getattr(self, name) is not None]


Sources = Annotated[list[Source], Field(min_length=1, description="a list of sources, each one of " + ", ".join(Source.model_fields))]


class Splits(Section):
    """The sources of each split, read one after the other."""

    train: Sources
    valid: Sources
    test: Sources


class Size(Section):
    """The approximate size of a corpus, for plans: training pairs, bytes of both sides' text, bytes to download."""

    pairs: Count
    text_bytes: Count
    download_bytes: NonNegativeInt


class Entry(Section):
    """A corpus: its languages, its terms of use, and its splits.

    `licence` is null if the owner gives none. `synthetic` labels every score on it as one that says nothing about real text. `metrics`
    names further scores, by which published figures on this corpus are counted (evaluation/moses_bleu.py).
    """

    name: Name
    languages: Annotated[list[Language], Field(min_length=2, description="a list of two or more languages")]
    licence: Annotated[str, Field(description="the licence's name, or null")] | None
    note: str
    synthetic: bool = False
    size: Size | None = None
    metrics: list[Literal["multi30k-lower"]] = Field(default_factory=list)
    splits: Splits


@dataclass(frozen=True)
class Found:
    """An entry and its file."""

    entry: Entry
    path: Path


def find_entry(name: str, own: Path = OWN_ENTRIES) -> Found:
    """Find an entry by name; the user's own has precedence.

    Raises:
        UserError: exit code 78; no such entry (the message gives the nearest names), or an invalid file.
    """
    for folder in (own, PACKAGED_ENTRIES):
        path = folder / f"{name}.yaml"
        if re.fullmatch(r"\w[\w.-]*", name) and path.is_file():
            return Found(load_entry(path), path)
    known = entry_names(own)
    near = difflib.get_close_matches(name, known, n=3)
    remedy = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}."
    raise configuration_error(f"{PARAMS_FILE}: download.corpus: no corpus is called {name!r}", remedy)


def entry_names(own: Path = OWN_ENTRIES) -> list[str]:
    """Return the names of all entries, sorted."""
    return sorted({path.stem for folder in (own, PACKAGED_ENTRIES) for path in folder.glob("*.yaml")})


def load_entry(path: Path) -> Entry:
    """Read and check an entry. Raises `UserError` (78), with a line for each fault that names file and key."""
    entry = validate_document(Entry, read_yaml(path), path)
    if faults := list(_faults(entry, path)):
        raise combined_error(faults)
    return entry


def _faults(entry: Entry, path: Path) -> Iterator[UserError]:
    """Yield the contradictions of an entry whose values are valid alone."""
    if entry.name != path.stem:
        yield configuration_error(f"{path}: name: must be the file's name, {path.stem!r}, got {entry.name!r}")
    splits: dict[str, list[Source]] = dict(entry.splits)
    for split, sources in splits.items():
        for index, source in enumerate(sources):
            yield from _faults_of_source(entry, source, f"{path}: splits.{split}.{index}")
        if any(source.holdout for source in sources) and (split == "train" or len(sources) > 1):
            yield configuration_error(f"{path}: splits.{split}: holdout must be the only source, of valid or test")
    if not entry.synthetic and any(source.synthetic for sources in splits.values() for source in sources):
        yield configuration_error(f"{path}: synthetic: must be true, a source is synthetic", "Scores on generated text are labelled so.")


def _faults_of_source(entry: Entry, source: Source, where: str) -> Iterator[UserError]:
    if len(source.kinds) != 1:
        given = ", ".join(source.kinds) or "nothing"
        yield configuration_error(f"{where}: must be exactly one of {', '.join(Source.model_fields)}, got {given}")
    if source.trees is not None and (len(entry.languages) != 2 or TREES not in entry.languages):
        yield configuration_error(f"{where}.trees: languages must be those of the words and {TREES}, got {', '.join(entry.languages)}")
    for kind, of_language in (("files", source.files), ("https", source.https)):
        if of_language is None:
            continue
        if set(of_language) != set(entry.languages):
            yield configuration_error(
                f"{where}.{kind}: must name the languages {', '.join(entry.languages)}, got {', '.join(of_language) or 'none'}"
            )
        texts = [_text(file) for file in of_language.values()]
        if len(set(texts)) < len(texts) and not all(map(_holds_languages, of_language.values())):
            yield configuration_error(f"{where}.{kind}: two languages are the same text", "Give each its column, from 1.")


def _text(file: LocalFile | Address) -> tuple[str, str | None, int | None]:
    """Return what identifies the text of one language."""
    return (file.path, None, file.column) if isinstance(file, LocalFile) else (file.url, file.member, file.column)


def _holds_languages(file: LocalFile | Address) -> bool:
    """Whether the file's format (TMX) marks the language of each sentence."""
    name = file.path if isinstance(file, LocalFile) else file.member or urlsplit(file.url).path
    return ".tmx" in PurePosixPath(name).suffixes


def check_direction(found: Found, source: str, target: str) -> None:
    """Refuse languages that the entry does not have. Raises `UserError`: exit code 78."""
    for key, language in (("source", source), ("target", target)):
        if language not in found.entry.languages:
            fault = f"{PARAMS_FILE}: download.{key}: {found.path} has no language {language!r}"
            raise configuration_error(fault, f"It has {', '.join(found.entry.languages)}.")
