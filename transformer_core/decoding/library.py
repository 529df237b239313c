"""A model in another program: `transformer_core.load`, which translates as `transformer-core translate` does."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from logging import getLogger
from pathlib import Path
from threading import RLock
from typing import Annotated, NamedTuple, TypedDict, Unpack, get_args

import torch
from pydantic import Field

from transformer_core.config import PAPER_SEARCH, CTranslate2Precision, Decode, DecodingPrecision, EngineName, EngineOption, Penalty
from transformer_core.corpus.placeholders import masked
from transformer_core.corpus.text import normalise
from transformer_core.corpus.tokens.shortlist import Shortlist
from transformer_core.decoding.beam import Search
from transformer_core.decoding.engine import Choice, DecodingRequest, Engine, SourceChunk, choose_engine, load_engine, translated
from transformer_core.decoding.glossary import Glossary
from transformer_core.decoding.lines import Line, LineReader, check_known, most_tokens, to_language
from transformer_core.decoding.translator import Done, Hypothesis, Translator, check_shortlist
from transformer_core.errors import configuration_error, did_you_mean
from transformer_core.models.directory import ModelConfig
from transformer_core.schema import PositiveInt, Section, validate_document

_AT_ONCE = 8_192  # Lines; of all their hypotheses only what is asked for is kept.


class Options(TypedDict, total=False):
    """Settings of a translation; those of the search that are left out are of the search that scored the model, or else the paper's."""

    beam: int
    alpha: float
    penalty: Penalty
    max_extra: int
    patience: float | None
    batch_tokens: int  # Largest number of source tokens in a batch, padding included; it bounds memory.
    to: str | None  # Target language of a model of several directions.
    max_input: int | None  # Most tokens of a part of a line.
    glossary: Glossary | None  # Wanted translations of terms.


class _Further(Section):
    patience: Annotated[float, Field(gt=0)] | None
    max_input: PositiveInt | None


@dataclass(frozen=True)
class LoadedModel:
    """A model, or several that translate together. An engine is loaded when the first translation needs it."""

    directories: Sequence[Path]  # The model directories.
    config: ModelConfig  # Config.json of the first.
    engine: EngineOption | None = None  # See `choose_engine`; None for the model's own, which gives way where it cannot do what is wanted.
    precision: DecodingPrecision | None = None  # Likewise.
    device: torch.device | None = None  # None for the GPUs if there are any.
    shortlist: bool | None = None  # Whether the search is among the subwords on shortlists; None for the model's own.
    replicas: bool = True  # Whether all GPUs translate, or the first alone.
    _engines: dict[tuple[EngineName, DecodingPrecision, bool], Engine] = field(default_factory=dict)
    _loading: RLock = field(default_factory=RLock)

    def translate(self, lines: Sequence[str], **options: Unpack[Options]) -> list[str]:
        """Return the best translation of each line; arguments and errors as in `hypotheses`."""
        return [found[0].text for found in self._translated(lines, self.prepared(**options))]

    def hypotheses(self, lines: Sequence[str], nbest: int = 1, **options: Unpack[Options]) -> list[list[Hypothesis]]:
        """Return the `nbest` best translations of each line, best first, each with `text`, `score` and `log_probability`.

        Args:
            lines: of the source language; a long one is translated in parts, and an empty one has an empty translation.
            nbest: at most the beam.

        Raises `TypeError`: `lines` is one text. `UserError`: a wrong option, an engine that cannot do this, or a damaged model.
        """
        return [found[:nbest] for found in self._translated(lines, self.prepared(nbest, **options))]

    def _translated(self, lines: Sequence[str], prepared: "Prepared") -> Iterator[list[Hypothesis]]:
        if isinstance(lines, str):
            raise TypeError(f"lines: one text; put it in a list: [{lines[:20]!r}]")
        for chunk in prepared.translated(((line, "") for line in lines), _AT_ONCE):
            yield from chunk
        for note in prepared.reader.notes():
            getLogger(__name__).warning(note)

    def prepared(self, nbest: int | None = 0, option: str = "to", prefixes: bool = False, **options: Unpack[Options]) -> "Prepared":
        """Return the engine, loaded, for `nbest` translations of a line with these settings.

        0 is for the best one without scores, None for as many as the beam has. Errors in the target language begin with `option`.
        """
        own = self.config.decode or PAPER_SEARCH.model_copy(update={"engine": "auto"})
        if unknown := [key for key in options if key not in Options.__annotations__]:
            raise configuration_error(f"options: {unknown[0]}: unknown key", did_you_mean(unknown[0], [*Options.__annotations__], ""))
        given = {key: value for key, value in options.items() if key in Decode.model_fields}
        given |= {"engine": "torch", "precision": self.precision or own.precision}
        chosen = validate_document(Decode, {**own.model_dump(), **given}, Path("options"))
        further = validate_document(_Further, {key: options.get(key) for key in _Further.model_fields}, Path("options"))
        search, max_input = Search(chosen.beam, chosen.alpha, chosen.penalty, chosen.max_extra, further.patience), further.max_input
        wanted = DecodingRequest(
            self.directories,
            replace(search, nbest=chosen.beam if nbest is None else max(1, nbest)),
            chosen.precision,
            self.device,
            prefixes=prefixes,
            scored=nbest != 0,
            longest=most_tokens(self.config, None, max_input) + chosen.max_extra,
            shortlist=own.shortlist and len(self.directories) == 1 if self.shortlist is None else self.shortlist,
            glossary=options.get("glossary"),
        )
        asked = self.engine or own.engine
        # What was not asked for gives way where it cannot do what is wanted.
        if self.engine is None and (self.precision == "int8" or (asked == "ctranslate2" and wanted.missing())):
            asked = "auto"
        unfit = asked == "ctranslate2" and wanted.precision not in get_args(CTranslate2Precision)
        if self.precision is None and (unfit or (wanted.precision == "int8" and (asked == "torch" or wanted.missing()))):
            wanted = replace(wanted, precision="float32")
        choice = choose_engine(asked, wanted)
        engine = self._engine(choice.engine, wanted)
        marked = to_language(self.config, engine.subword, options.get("to"), option)
        reader = LineReader(engine.subword, self.config.source, most_tokens(self.config, engine.most_positions, max_input), marked)
        return Prepared(choice, engine, wanted, reader, chosen.batch_tokens)

    def _engine(self, name: EngineName, wanted: DecodingRequest) -> Engine:
        """Return an engine, which is loaded once: with a shortlist it has the same weights. Threads may share the model."""
        with self._loading:
            key = name, wanted.precision, wanted.shortlist
            if key not in self._engines:
                self._engines[key] = self._with_shortlist(name, wanted) if wanted.shortlist else load_engine(name, wanted, self.replicas)
            return self._engines[key]

    def _with_shortlist(self, name: EngineName, wanted: DecodingRequest) -> Engine:
        file = check_shortlist(self.directories)
        plain = self._engine(name, replace(wanted, shortlist=False))
        if isinstance(plain, Translator):
            return replace(plain, shortlist=Shortlist.load(file, plain.subword.vocab_size))
        return replace(plain, shortlist=True)


def usable_device(name: str, option: str) -> torch.device:
    """Return a device by its name. Raises `UserError` (78), which begins with `option`: no such name, or no such GPU here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise configuration_error(f"{option}: must be cpu, cuda or cuda:NUMBER, got {name!r}") from None
    usable = torch.cuda.device_count() if torch.cuda.is_available() else 0  # The count alone needs no working CUDA.
    if device.type != "cpu" and (device.type != "cuda" or (device.index or 0) >= usable):
        raise configuration_error(f"{option}: {name} requested, {usable} GPUs here")
    return device


class Prepared(NamedTuple):
    """An engine, why it was chosen, and how it translates lines that the reader reads."""

    choice: Choice
    engine: Engine
    wanted: DecodingRequest
    reader: LineReader
    batch_tokens: int

    def translated(
        self, lines: Iterator[tuple[str, str]], at_once: int | None = None, ahead: int = 0, done: Done = int
    ) -> Iterator[list[list[Hypothesis]]]:
        """Yield the translations of `at_once` lines after the other, or of all, each best first.

        `lines` are texts, each with the beginning of its translation, which counts if prefixes are wanted: the first part of a line begins
        with it. For `ahead` and `done` see `translated` in engine.py.
        """
        begun: deque[list[Line]] = deque()

        def chunks() -> Iterator[SourceChunk]:
            while chunk := list(islice(lines, at_once)):
                begun.append([self.reader.read(text) for text, _ in chunk])
                starts: list[list[int]] = []
                for line, (_, text) in zip(begun[-1], chunk, strict=True):
                    beginning = masked(normalise(text), line.strings[0] or ()) if text else ""
                    check_known(beginning, self.engine.subword.of_target, "--prefixes", "Leave them out.")
                    starts += [self.engine.subword.of_target.encode(beginning)[:-1], *[[]] * (len(line.parts) - 1)]
                strings = [own for line in begun[-1] for own in line.strings]
                yield SourceChunk([part for line in begun[-1] for part in line.parts], starts if self.wanted.prefixes else None, strings)

        for results in translated(self.engine, chunks(), self.wanted, self.batch_tokens, ahead, done):
            parts = iter(results)
            yield [line.joined([*islice(parts, len(line.parts))]) for line in begun.popleft()]
