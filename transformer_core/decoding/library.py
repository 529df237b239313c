"""A model in another program: `transformer_core.load`, which translates as `transformer-core translate` does."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from logging import getLogger
from pathlib import Path
from typing import TypedDict, Unpack

import torch

from transformer_core.config import PAPER_SEARCH, DecodingPrecision, Penalty
from transformer_core.decoding.beam import Search
from transformer_core.decoding.engine import (
    DecodingRequest,
    Engine,
    EngineName,
    EngineOption,
    SourceChunk,
    choose_engine,
    load_engine,
    model_gives_way,
    translated,
)
from transformer_core.decoding.lines import LineReader, most_tokens
from transformer_core.decoding.translator import Hypothesis
from transformer_core.models.directory import ModelConfig


class SearchOptions(TypedDict, total=False):
    """Settings of `Search`; those that are left out are the ones with which the model was scored, or else the paper's."""

    beam: int
    alpha: float
    penalty: Penalty
    max_extra: int
    patience: float | None


@dataclass(frozen=True)
class LoadedModel:
    """A model, or several that translate together. An engine is loaded when the first translation needs it.

    Attributes:
        directories: the model directories.
        config: config.json of the first.
        engine: see `choose_engine`; None for the model's own, which gives way where it cannot do what is wanted.
        precision: likewise.
        device: None for a GPU if there is one.
    """

    directories: Sequence[Path]
    config: ModelConfig
    engine: EngineOption | None = None
    precision: DecodingPrecision | None = None
    device: torch.device | None = None
    _engines: dict[tuple[EngineName, DecodingPrecision], Engine] = field(default_factory=dict)

    def translate(self, lines: Sequence[str], batch_tokens: int | None = None, **search: Unpack[SearchOptions]) -> list[str]:
        """Return the best translation of each line; arguments and errors as in `hypotheses`."""
        return [found[0].text for found in self._translated(lines, 0, batch_tokens, search)]

    def hypotheses(
        self, lines: Sequence[str], nbest: int = 1, batch_tokens: int | None = None, **search: Unpack[SearchOptions]
    ) -> list[list[Hypothesis]]:
        """Return the `nbest` best translations of each line, best first, each with `text`, `score` and `log_probability`.

        Args:
            lines: of the source language; a long one is translated in parts, and an empty one has an empty translation.
            nbest: at most the beam.
            batch_tokens: largest number of source tokens in a batch, padding included; it bounds memory.
            search: settings of beam search.

        Raises `TypeError`: `lines` is one text. `UserError`: an engine that cannot do this was asked for, or the model is damaged.
        """
        return [found[:nbest] for found in self._translated(lines, nbest, batch_tokens, search)]

    def _translated(self, lines: Sequence[str], nbest: int, batch_tokens: int | None, search: SearchOptions) -> list[list[Hypothesis]]:
        if isinstance(lines, str):
            raise TypeError(f"lines: one text; put it in a list: [{lines[:20]!r}]")
        own = self.config.decode or PAPER_SEARCH.model_copy(update={"engine": "auto"})
        usual = SearchOptions(beam=own.beam, alpha=own.alpha, penalty=own.penalty, max_extra=own.max_extra)
        usual.update(search)
        wanted = DecodingRequest(
            self.directories,
            Search(**usual, nbest=max(1, nbest)),
            self.precision or own.precision,
            self.device,
            scored=nbest > 0,
            longest=most_tokens(self.config, None) + usual["max_extra"],
            shortlist=own.shortlist,
        )
        asked, wanted = model_gives_way(self.engine, self.precision, own.engine, wanted)
        chosen = choose_engine(asked, wanted).engine, wanted.precision
        if chosen not in self._engines:
            self._engines[chosen] = load_engine(chosen[0], wanted)
        engine = self._engines[chosen]
        reader = LineReader(engine.subword, self.config.source, most_tokens(self.config, engine.most_positions))
        read = list(map(reader.read, lines))
        for note in reader.notes():
            getLogger(__name__).warning(note)
        chunk = SourceChunk([part for line in read for part in line.parts])
        (found,) = translated(engine, [chunk], wanted, batch_tokens or own.batch_tokens, ahead=0)
        parts = iter(found)
        return [line.joined([*islice(parts, len(line.parts))]) for line in read]
