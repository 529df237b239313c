"""Lines in, translations out: subwords, batches of similar length, beam search, text again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_core.corpus.subword import EOS, PAD, Subword
from transformer_core.decoding.beam import Finished, beam_search
from transformer_core.errors import UserError
from transformer_core.models.directory import CONFIG, SUBWORD, load_model
from transformer_core.models.translation import TranslationModel

TokenIds = Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True)
class Hypothesis:
    """A translation: its text, log-probability, and that over the length penalty, by which hypotheses are ranked."""

    text: str
    score: float
    log_probability: float
    tokens: int


@dataclass(frozen=True)
class Translator:
    """A model with its vocabulary. A translation depends on its sentence alone, whatever stands in the batch with it."""

    model: TranslationModel
    subword: Subword

    @classmethod
    def load(cls, directory: Path) -> "Translator":
        """Read a model directory; on a GPU if there is one.

        Raises:
            UserError: exit code 65; a file is missing or damaged, or the vocabulary is not the one the weights were trained with.
        """
        model, config = load_model(directory)
        subword = Subword.load(directory / SUBWORD)
        if subword.hash != config.vocabulary.hash:
            raise UserError(
                f"{directory / SUBWORD}: vocabulary {subword.hash[:12]}, but {directory / CONFIG} names {config.vocabulary.hash[:12]}",
                "Take spm.model and weights from the same training.",
            )
        return cls(model.to("cuda" if torch.cuda.is_available() else "cpu"), subword)

    def translate(
        self, lines: Sequence[str], beam: int = 4, alpha: float = 0.6, max_extra: int = 50, batch_tokens: int = 4096
    ) -> list[list[Hypothesis]]:
        """Up to `beam` translations of each line, best first, in the order of the lines. An empty line gives one empty translation."""
        return self.translate_tokens([self.subword.encode(line) for line in lines], beam, alpha, max_extra, batch_tokens)

    def translate_tokens(
        self, sources: Sequence[TokenIds], beam: int, alpha: float, max_extra: int, batch_tokens: int
    ) -> list[list[Hypothesis]]:
        """The same for sources that are token ids with an end token.

        Args:
            batch_tokens: most source positions, padding counted, decoded together; a longer source is decoded alone.

        Raises:
            UserError: exit code 65; a source has more tokens than a model with learned positions has learned.
        """
        most = self.model.most_positions
        for number, source in enumerate(sources, 1):
            if most is not None and len(source) > most:
                raise UserError(
                    f"sentence {number}: {len(source)} tokens, but this model has learned {most} positions", "Split the sentence."
                )
        results = [[Hypothesis("", 0.0, 0.0, 0)] for _ in sources]
        for numbers in _batches([len(source) for source in sources], batch_tokens):
            tokens = self._padded([sources[number] for number in numbers])
            outputs = beam_search(self.model, tokens, tokens != PAD, beam, alpha, max_extra, most)
            for number, finished in zip(numbers, outputs, strict=True):
                results[number] = [self._hypothesis(output) for output in finished]
        return results

    def _padded(self, sources: list[TokenIds]) -> torch.Tensor:
        width = max(len(source) for source in sources)
        rows = torch.full((len(sources), width), PAD, dtype=torch.long)
        for row, source in zip(rows, sources, strict=True):
            row[: len(source)] = torch.as_tensor(np.asarray(source, dtype=np.int64))
        return rows.to(self.model.output_weight.device)

    def _hypothesis(self, finished: Finished) -> Hypothesis:
        text = self.subword.decode([token for token in finished.tokens if token != EOS])
        return Hypothesis(text, finished.score, finished.log_probability, len(finished.tokens))


def _batches(lengths: list[int], batch_tokens: int) -> list[list[int]]:
    """Numbers of the sources that hold more than an end token, shortest first, cut where rows times longest passes the budget."""
    batches: list[list[int]] = []
    for number in sorted((number for number, length in enumerate(lengths) if length > 1), key=lambda number: lengths[number]):
        if not batches or (len(batches[-1]) + 1) * lengths[number] > batch_tokens:
            batches.append([])
        batches[-1].append(number)
    return batches
