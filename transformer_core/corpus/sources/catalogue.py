"""The catalogue of corpora: each entry is a YAML file, in the package or in the user's `corpora/`, and names the sources of a corpus."""

import re
from collections.abc import Iterator
from itertools import chain, permutations
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, HttpUrl, NonNegativeInt, TypeAdapter

from transformer_core.config import PARAMS_FILE, Alpha, Beam, DecodingPrecision
from transformer_core.corpus.sources.manifest import FurtherScore
from transformer_core.corpus.text import FURTHER_TEST
from transformer_core.errors import configuration_error, did_you_mean
from transformer_core.schema import Count, Language, Name, Section, combined_error, validate_document
from transformer_core.tasks import SOURCES, TARGETS, TREES
from transformer_core.yaml_io import read_yaml

OWN_ENTRIES = Path("corpora")
PACKAGED_ENTRIES = Path(__file__).resolve().with_name("catalogue")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="a SHA-256 sum: 64 hexadecimal digits, small letters")]

# The name of a further test set: its files are NAME.LANGUAGE, and its scores have its name.
_TEST_NAME = re.compile(rf"{FURTHER_TEST}[\w-]{{1,100}}")
_ADDRESS = TypeAdapter(HttpUrl)
# Prefix of the name of a model in the registry.
REGISTRY = "models:/"


def _check_address(url: str) -> str:
    """Refuse an address that cannot be one, or whose last part cannot be the name of a file."""
    _ADDRESS.validate_python(url)
    if not (url + unquote(urlsplit(url).path)).isprintable():
        raise ValueError("control characters")
    return url


# A number in YAML is one in text, too.
Column = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(pattern=r"^0*[^0\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,199}$", description="a column's number, from 1, or its name"),
]


class Part(Section):
    """The sentences of one language, in a file that may hold other languages, too: see `formats.Side`."""

    sha256: Sha256 | None = None
    member: Name | None = None
    column: Column | None = None


class LocalFile(Part):
    """A file; a relative path starts at the entry's folder."""

    path: Name


class Address(Part):
    """A file on the web. If no sum is given, the sum of the first complete download is locked."""

    url: Annotated[
        str,
        AfterValidator(_check_address),
        Field(pattern=r"^https?://[^\s/]", max_length=2_000, description="an address that begins with https:// or http:// and a host"),
    ]


class Translated(Section):
    """The training text of another entry, with one side made by a model (corpora/README.md).

    A relative path of a model starts at the entry's folder, or at `corpora/` for a packaged entry.
    """

    corpus: Name
    model: Name
    side: Literal["target", "source"]
    beam: Beam = 4
    alpha: Alpha = 0.6
    pick: Literal["best", "nearest"] = "best"
    precision: DecodingPrecision = "float32"

    @property
    def registered(self) -> bool:
        """Whether the model is one of the registry."""
        return self.model.startswith(REGISTRY)


class Source(Section):
    """A source of sentence pairs; exactly one kind is given.

    corpora/README.md describes the keys. A relative pattern of `trees` starts at the entry's folder; a packaged entry whose folder has no
    such file looks in `corpora/`. Without a `direction` it serves all that it has the languages for.
    """

    files: Annotated[dict[str, LocalFile], Field(description="for each language a path, and perhaps sha256, member, column")] | None = None
    https: Annotated[dict[str, Address], Field(description="for each language a url, and perhaps sha256, member, column")] | None = None
    mtdata: Annotated[str, Field(description="a corpus in mtdata, GROUP-NAME-VERSION-LANGUAGE-LANGUAGE")] | None = None
    sacrebleu: Annotated[str, Field(description="the name of a test set in sacreBLEU")] | None = None
    trees: Annotated[Name, Field(description="a file of bracketed trees, or a pattern with * and ?")] | None = None
    translated: Translated | None = None
    weight: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    tag: Annotated[str, Field(pattern=r"^\S+$", description="a symbol without white space, such as <bt>")] | None = None
    direction: Name | None = None
    name: Annotated[str, Field(pattern=r"^\w[\w-]{0,50}$", description="letters, digits, dashes and underscores")] | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds that are given: exactly one in a checked entry."""
        return [name for name in KINDS if getattr(self, name) is not None]


KINDS = [name for name in Source.model_fields if name not in ("weight", "tag", "direction", "name")]

Sources = Annotated[list[Source], Field(min_length=1, description="a list of sources, each one of " + ", ".join(KINDS))]


class Splits(Section):
    """The sources of each split, read one after the other. An entry of one language, for `translated`, has train alone."""

    train: Sources
    valid: Sources | None = None
    test: Sources | None = None


class Size(Section):
    """The approximate size of a corpus, for `data plan`: training pairs, bytes of text on both sides, bytes to download."""

    pairs: Count
    text_bytes: Count
    download_bytes: NonNegativeInt


class Entry(Section):
    """A corpus: its languages, its terms of use, and its splits.

    `licence` is null if the owner names none. `metrics` names further scores, with which published figures on this corpus were computed;
    with symbol-error-rate its tokens are symbols. `tests` has test sets beside the main one, `splits.test`: they are translated and
    scored, too, and train has none of their sentences (`clean.drop_overlap`). `directions`, such as en-de, are those of one model, from
    `sources` to `targets`: a tag before each source sentence names its target (`tasks.tag_of`). A `temperature` T above 1 repeats pairs of
    small directions: the share of n pairs becomes proportional to n^(1/T).
    """

    name: Name
    languages: Annotated[list[Language], Field(min_length=1, description="a list of languages")]
    licence: Annotated[str, Field(description="the licence's name, or null")] | None
    note: str
    size: Size | None = None
    metrics: list[FurtherScore] = Field(default_factory=list)
    splits: Splits
    tests: dict[str, Sources] = Field(default_factory=dict)
    directions: list[Name] = Field(default_factory=list)
    temperature: Annotated[float, Field(ge=1)] = 1.0

    @property
    def sources(self) -> dict[str, list[Source]]:
        """The sources by split, or by name of a further test set."""
        return {split: sources for split, sources in self.splits if sources is not None} | self.tests

    def directions_of(self, source: Source) -> list[tuple[str, str]]:
        """Return source and target language of each direction that a source serves: the one that it names, or those of its languages."""
        if source.direction:
            return _directions([source.direction] if source.direction in self.directions else [], self.languages)
        return _directions(self.directions, [*(source.files or source.https or {})])

    def key_of(self, split: str) -> str:
        """Return the key of a split's sources: splits.train, tests.test_2017."""
        return f"{'tests' if split in self.tests else 'splits'}.{split}"


def _directions(names: list[str], languages: list[str]) -> list[tuple[str, str]]:
    """Return the directions of these names, such as en-de, between these languages."""
    return [(left, right) for name in names for left, right in permutations(languages, 2) if name == f"{left}-{right}"]


class FoundEntry(NamedTuple):
    entry: Entry
    path: Path

    @property
    def folder(self) -> Path:
        """The folder of what a user adds to an entry, its models and licensed trees: the entry's, or `corpora/` for a packaged entry."""
        return OWN_ENTRIES if self.path.parent == PACKAGED_ENTRIES else self.path.parent


def find_entry(name: str, named_in: str = f"{PARAMS_FILE}: download.corpus") -> FoundEntry:
    """Find an entry by name, first in `corpora/`, then in the package. `named_in` is the place of the name, for messages.

    Raises `UserError` (78): no such entry (the message gives similar names, or else all), or an invalid file.
    """
    for folder in (OWN_ENTRIES, PACKAGED_ENTRIES):
        path = folder / f"{name}.yaml"
        if re.fullmatch(r"\w[\w.-]*", name) and path.is_file():
            return FoundEntry(load_entry(path), path)
    names = entry_names()
    remedy = did_you_mean(name, names, f"Known: {', '.join(names)}.")
    raise configuration_error(f"{named_in}: no corpus is called {name!r}", remedy)


def entry_names() -> list[str]:
    """Return the names of all entries, sorted."""
    return sorted({path.stem for folder in (OWN_ENTRIES, PACKAGED_ENTRIES) for path in folder.glob("*.yaml")})


def load_entry(path: Path) -> Entry:
    """Read and check an entry. Raises `UserError` (78), with a line for each fault that names file and key."""
    entry = validate_document(Entry, read_yaml(path), path)
    if faults := [configuration_error(f"{path}: {fault}") for fault in _faults(entry, path.stem)]:
        raise combined_error(faults)
    return entry


def _faults(entry: Entry, name: str) -> Iterator[str]:
    """Yield the contradictions between the values of an entry, each of which is valid by itself; `name` is that of its file."""
    if entry.name != name:
        yield f"name: must be the file's name, {name!r}, got {entry.name!r}"
    alone = len(entry.languages) == 1
    for split in ("valid", "test"):
        if alone == (split in entry.sources):
            yield f"splits.{split}: {'is only for entries of two or more languages' if alone else 'is missing'}"
    for test in entry.tests:
        if not _TEST_NAME.fullmatch(test):
            yield f"tests: must have names such as test_2017, with letters, digits, _ and -, got {test!r}"
    if entry.directions and {TREES, SOURCES, TARGETS} & {*entry.languages}:
        yield f"directions: are only for languages of text, got {', '.join(entry.languages)}"
    if len(_directions(entry.directions, entry.languages)) < len(entry.directions):
        yield f"directions: must be such as en-de of the languages {', '.join(entry.languages)}, got {', '.join(entry.directions)}"
    if entry.temperature != 1 and not entry.directions:
        yield "temperature: is only for entries with directions"
    if alone and entry.tests:
        yield "tests: is only for entries of two or more languages"
    for split, sources in entry.sources.items():
        for index, source in enumerate(sources):
            yield from _faults_of_source(entry, source, f"{entry.key_of(split)}.{index}")
        for key in ("translated", "weight", "name") if split != "train" else ():
            if any(getattr(source, key) != Source.model_fields[key].default for source in sources):
                yield f"{entry.key_of(split)}: {key} is allowed in train only"


def _faults_of_source(entry: Entry, source: Source, where: str) -> Iterator[str]:
    if len(source.kinds) != 1:
        yield f"{where}: must be exactly one of {', '.join(KINDS)}, got {', '.join(source.kinds) or 'nothing'}"
    if (entry.directions or source.direction) and not entry.directions_of(source):
        yield f"{where}.direction: must be one of {', '.join(entry.directions) or 'directions, which the entry lacks'}"
    if source.trees is not None and (len(entry.languages) != 2 or TREES not in entry.languages):
        yield f"{where}.trees: languages must be those of the words and {TREES}, got {', '.join(entry.languages)}"
    for kind, of_language in (("files", source.files), ("https", source.https)):
        if of_language is None:
            continue
        wanted = sorted({*chain(*entry.directions_of(source))}) if entry.directions else entry.languages
        if set(wanted) - set(of_language) or set(of_language) - set(entry.languages):
            yield f"{where}.{kind}: must name the languages {', '.join(wanted or entry.languages)}, got {', '.join(of_language) or 'none'}"


def check_direction(found: FoundEntry, source: str, target: str, asked_by: Path = PARAMS_FILE) -> None:
    """Check that the entry has both languages. Raises `UserError` (78); `asked_by` is the file that asks for them, for the message."""
    if found.entry.directions and (source, target) == (SOURCES, TARGETS):
        return
    for key, language in (("source", source), ("target", target)):
        if language not in found.entry.languages:
            key = f"download.{key}" if asked_by == PARAMS_FILE else "translated.corpus"
            fault = f"{asked_by}: {key}: {found.path} has no language {language!r}"
            several = f", and {SOURCES} and {TARGETS} for all its directions" if found.entry.directions else ""
            raise configuration_error(fault, f"It has {', '.join(found.entry.languages)}{several}.")
