"""Sources `translated`: the training text of another entry, with one side made by a model.

With the target made by a model, a smaller one is trained on its outputs (sequence-level distillation, Kim and Rush 2016). With the source
made by a model of the other direction, text of the target language alone becomes training pairs (back-translation, Sennrich et al. 2016).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path

from transformer_core.config import PARAMS_FILE
from transformer_core.corpus.sources.catalogue import FoundEntry, Source, Translated, check_direction, find_entry
from transformer_core.corpus.sources.fetching import lock_file
from transformer_core.corpus.sources.manifest import Origin
from transformer_core.corpus.sources.readers import OpenedSource, SourceReader, located
from transformer_core.corpus.text import Pair
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import sha256_of

# Direction of the corpus, settings, model directory, and pairs of a text and its other side (the text again where it has none).
Translate = Callable[[tuple[str, str], Translated, Path, Iterator[Pair[bytes]]], Iterator[Pair[bytes]]]  # Returns the text's translations.


@dataclass(frozen=True)
class Teachers:
    """What translates the text of sources, and the directories of the models from the registry that it needs, by their names."""

    translate: Translate
    registered: Mapping[str, Path]


@dataclass(frozen=True)
class TranslatedSource:
    """A source `translated` of the entry of a reader."""

    wanted: Translated
    reader: SourceReader

    @cached_property
    def text(self) -> SourceReader:
        """The reader of the other entry. If that has one language, both sides of a pair are the same text.

        Raises `UserError` (78): no such entry, or it has no such language, or `nearest` has no sentence to be near to.
        """
        found = find_entry(self.wanted.corpus, named_in=f"{self.reader.found.path}: translated.corpus")
        languages = self.reader.direction
        if not set(languages) <= set(found.entry.languages):
            language = self.reader.source if self.wanted.side == "target" else self.reader.target
            languages = language, language
            if self.wanted.pick == "nearest":
                fault = f"{self.reader.found.path}: translated.pick: nearest needs both sides, and {found.path} has one"
                raise configuration_error(fault, "Set pick: best.")
        check_direction(found, *languages, self.reader.found.path)
        fetcher = replace(self.reader.fetcher, corpus=found.entry.name, lock=lock_file(found.entry.name))
        return SourceReader(found, *languages, fetcher)

    @property
    def sources(self) -> list[Source]:
        """The other entry's sources of train in this direction, without those that are translations themselves."""
        return [source for source in self.text.found.entry.splits.train if not source.translated and self.text.readers_of(source)]

    @property
    def model(self) -> Path | None:
        """The model directory; None for a model of the registry."""
        return None if self.wanted.registered else located(self.reader.found.folder, self.wanted.model)

    def local_files(self) -> list[Path]:
        """Return the paths of local files, see `SourceReader.local_files`; the model's are those of its directory."""
        texts = [file for source in self.sources for file in self.text.local_files(source)]
        return texts + (_files_of(self.model) or [self.model] if self.model else [])

    def local_origins(self) -> list[Origin]:
        local = [source for source in self.sources if self.text.local_files(source)]
        texts = [origin for source in local for origin in self.text.open(source).origins]
        return texts + ([self._origin(self.model)] if self.model else [])

    def open(self, teachers: Teachers) -> OpenedSource:
        """Open the source. The text is translated as the pairs are read.

        Raises `UserError`: as `SourceReader.open`; exit code 65 also for a missing model, and for a model of the registry that is not the
        one whose sum is locked.
        """
        directory = self.model or teachers.registered[self.wanted.model]
        origin = self._origin(directory)
        if self.wanted.registered:
            self.reader.fetcher.check_locked(self.wanted.model, origin["sha256"])
        origins = [other for source in self.sources for other in self.text.open(source).origins]
        return OpenedSource(self._pairs(teachers, directory), [*origins, origin])

    def _origin(self, directory: Path) -> Origin:
        files = _files_of(directory)
        if not files:
            raise UserError(f"{directory}: no such model directory", f"{self.reader.found.path} names it.")
        sums = "".join(f"{file.name} {sha256_of(file)}\n" for file in files)
        settings = {key: str(value) for key, value in self.wanted.model_dump(exclude_none=True).items()}
        return {**settings, "sha256": sha256(sums.encode()).hexdigest()}

    def _pairs(self, teachers: Teachers, directory: Path) -> Iterator[Pair[bytes]]:
        forward = self.wanted.side == "target"
        pairs = chain.from_iterable(self.text.open(source).pairs for source in self.sources)
        texts = pairs if forward else (Pair(pair.target, pair.source) for pair in pairs)
        for text, made in teachers.translate(self.reader.direction, self.wanted, directory, texts):
            yield Pair(text, made) if forward else Pair(made, text)


def registered_models(found: FoundEntry) -> list[str]:
    """Return the names of the models of the registry that an entry needs."""
    wanted = [source.translated for source in found.entry.splits.train if source.translated]
    return sorted({translated.model for translated in wanted if translated.registered})


def check_tags(reader: SourceReader, symbols: list[str]) -> None:
    """Check that the tags of an entry are symbols of the vocabulary. Raises `UserError` (78): one is not among `bpe.user_symbols`."""
    sources = chain.from_iterable(reader.found.entry.sources.values())
    tags = [tag for source in sources for part in reader.readers_of(source) for tag in part.tags_of(source)]
    if missing := [tag for tag in dict.fromkeys(tags) if tag not in symbols]:
        fault = f"{reader.found.path}: tags that are not in bpe.user_symbols: {', '.join(missing)}"
        raise configuration_error(fault, f"Add them there in {PARAMS_FILE}, so that each is one token.")


def _files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_file()) if directory.is_dir() else []
