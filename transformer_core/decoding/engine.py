"""The choice between two engines: this project's own search in PyTorch, and CTranslate2; and translation of chunk after chunk by either."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

import torch

from transformer_core.config import CTranslate2Precision, DecodingPrecision, EngineName, EngineOption
from transformer_core.corpus.tokens.subword import TokenIds
from transformer_core.decoding.beam import Search
from transformer_core.decoding.ctranslate2_engine import CTranslate2Engine
from transformer_core.decoding.ctranslate2_export import positions_of, unsupported
from transformer_core.decoding.glossary import Glossary
from transformer_core.decoding.translator import Done, Hypothesis, Translator
from transformer_core.errors import configuration_error
from transformer_core.models.directory import CONFIG, read_config
from transformer_core.presets import TransformerSize
from transformer_core.tasks import task_of

Engine = Translator | CTranslate2Engine

# Several threads of CTranslate2 have so many batches each, so that none is idle at the end, unless batches had fewer source tokens than
# this: a base-sized model takes a quarter more time with 512 tokens a batch than with 2,048.
_BATCHES_A_THREAD, _SHORTEST_BATCH = 2, 512


@dataclass(frozen=True)
class DecodingRequest:
    """What the choice of an engine depends on."""

    models: Sequence[Path]  # Model directories; several translate together.
    search: Search
    precision: DecodingPrecision = "float32"
    device: torch.device | None = None  # None for the GPUs if there are any.
    prefixes: bool = False  # Whether beginnings of the translations are given.
    scored: bool = False  # Whether scores or several translations of a line are wanted.
    longest: int = 0  # Largest number of tokens of a line or of its translation.
    shortlist: bool = False  # Whether the search is among the subwords on shortlists.
    glossary: Glossary | None = None  # Wanted translations of terms; not with prefixes.

    def missing(self) -> str:
        """Return what CTranslate2 lacks for this, for a message; empty if it can do it. Raises `UserError`: see `read_config`."""
        if len(self.models) > 1:
            return "CTranslate2 has no ensembles"
        if self.prefixes:
            return "CTranslate2 is not used with prefixes"
        if self.glossary:
            return "CTranslate2 is not used with a glossary"
        if self.device is not None and self.device.type != "cpu":
            return "CTranslate2 is not used on a GPU"
        if self.precision not in get_args(CTranslate2Precision):
            return f"CTranslate2 is used in float32 and int8, and not in {self.precision}"
        config = read_config(self.models[0] / CONFIG)
        return "CTranslate2 does not keep trees valid" if task_of(config.target).constraint else unsupported(config.model)

    def difference(self) -> str:
        """Return why CTranslate2 is not the better choice if it can do this, for a message; empty if it is.

        Its rule of stopping, a patience of 1 where none is asked for, is no reason.
        """
        size = read_config(self.models[0] / CONFIG).model
        if torch.cuda.is_available() and self.device is None:
            return "there is a GPU"
        if self.shortlist:
            return "CTranslate2 unites the shortlists of a batch"
        if self.scored:
            return "CTranslate2's scores are conditional on the absence of special tokens"
        if isinstance(size, TransformerSize) and positions_of(size) < self.longest and size.positions != "learned":
            return f"CTranslate2 has {positions_of(size):,} positions"
        return ""


class Choice(NamedTuple):
    """An engine, and the reason for it."""

    engine: EngineName
    reason: str


def choose_engine(asked: EngineOption, wanted: DecodingRequest) -> Choice:
    """Return the engine asked for; for `auto` CTranslate2 on a CPU where it can do what is wanted in the same way, else PyTorch.

    In int8, which PyTorch does not compute, `auto` is CTranslate2. Raises `UserError` (78): CTranslate2 is needed and cannot do what is
    wanted. See also `read_config`.
    """
    if asked == "torch":
        return Choice("torch", "as asked")
    missing = wanted.missing()
    if asked == "ctranslate2":
        if missing:
            raise configuration_error(f"engine ctranslate2: {missing}", "Take the engine torch or auto.")
        return Choice("ctranslate2", "as asked")
    if wanted.precision == "int8":
        if missing:
            raise configuration_error(f"precision int8: {missing}", "Take another precision, which the engine torch has.")
        return Choice("ctranslate2", "the one with int8")
    if reason := missing or wanted.difference():
        return Choice("torch", reason)
    return Choice("ctranslate2", "the faster one on a CPU")


def load_engine(engine: EngineName, wanted: DecodingRequest, replicas: bool = True) -> Engine:
    """Load the models for an engine that can do what is wanted, with torch's number of threads; arguments and errors as in their `load`."""
    if engine == "torch":
        return Translator.load(
            *wanted.models, precision=wanted.precision, device=wanted.device, shortlist=wanted.shortlist, replicas=replicas
        )
    precision: CTranslate2Precision = "int8" if wanted.precision == "int8" else "float32"
    return CTranslate2Engine.load(wanted.models[0], torch.get_num_threads(), precision, wanted.shortlist)


class SourceChunk(NamedTuple):
    """Sources that are translated together, and for each, if there are prefixes, the beginning of its translation; see `Translator`."""

    sources: Sequence[TokenIds]
    prefixes: Sequence[Sequence[int]] | None = None
    strings: Sequence[Sequence[str] | None] = ()  # See `strings_of`.


def translated(
    engine: Engine, chunks: Iterable[SourceChunk], wanted: DecodingRequest, batch_tokens: int, ahead: int, done: Done = int
) -> Iterator[list[list[Hypothesis]]]:
    """Yield the translations of each chunk, in order, best first. They have scores if these are wanted.

    CTranslate2 gets shorter batches for few sentences, and has begun so many chunks `ahead` when the translations of a chunk are waited
    for: it translates them while they are tokenised here, and others detokenised and written. `done` gets numbers of translated sources.
    """

    def begin(chunk: SourceChunk) -> Callable[[], list[list[Hypothesis]]]:
        if isinstance(engine, Translator) and wanted.glossary:
            return partial(wanted.glossary.translate, engine, chunk.sources, wanted.search, batch_tokens, done, chunk.strings)
        if isinstance(engine, Translator):
            return partial(engine.translate_tokens, chunk.sources, wanted.search, batch_tokens, chunk.prefixes, done)
        threads, most = engine.translator.num_translators, batch_tokens
        if threads > 1:
            most = min(most, max(_SHORTEST_BATCH, sum(map(len, chunk.sources)) // (_BATCHES_A_THREAD * threads)))
        return engine.begin(chunk.sources, wanted.search, most, wanted.scored, done)

    waiting: deque[Callable[[], list[list[Hypothesis]]]] = deque()
    for chunk in chunks:
        waiting.append(begin(chunk))
        if len(waiting) > (0 if isinstance(engine, Translator) else ahead):
            yield waiting.popleft()()
    for translations in waiting:
        yield translations()
