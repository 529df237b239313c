"""Beam search with the paper's length penalty; it stops when no live hypothesis can become better than the best outputs (paper 6.1)."""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from transformer_core.config import PAPER_SEARCH, Penalty
from transformer_core.corpus.tokens.subword import EOS, PAD
from transformer_core.decoding.hypotheses import Finished, Hypotheses, Limits, StepModel, top_logits


@dataclass(frozen=True)
class Search:
    """Settings of beam search.

    Attributes:
        beam: K, the number of hypotheses kept per sentence.
        alpha: exponent of the length penalty; 0 for none.
        penalty: kind of length penalty, see `length_penalty`.
        max_extra: at least 1; an output, end token included, has at most this many tokens more than its source without the end token.
        patience: a sentence is done when `beam` times this many hypotheses have ended among its K best (Kasai et al. 2022; 1 is the rule
            of fairseq and CTranslate2). With a beam above 1 no output is then empty, as in these: the end token at once is seldom good,
            but often among the K best, and would end the search too early. None continues until the `nbest` best outputs are final.
        nbest: number of outputs that, without a patience, are the same as those of a search to the maximum length.
    """

    beam: int = PAPER_SEARCH.beam
    alpha: float = PAPER_SEARCH.alpha
    penalty: Penalty = PAPER_SEARCH.penalty
    max_extra: int = PAPER_SEARCH.max_extra
    patience: float | None = None
    nbest: int = 1


Length = TypeVar("Length", Tensor, float)


def length_penalty(length: Length, alpha: float, penalty: Penalty) -> Length:
    """Return the divisor of log-probabilities for outputs of length |Y|, end token included.

    `wu` is ((5 + |Y|) / 6)^alpha (Wu et al. 2016, eq. 14, the paper's 6.1); `power` is |Y|^alpha.
    """
    return ((5.0 + length) / 6.0 if penalty == "wu" else length) ** alpha


@torch.inference_mode()
def beam_search(
    model: StepModel, source: Tensor, source_mask: Tensor, settings: Search, prefix: Tensor | None = None, most_positions: int | None = None
) -> list[list[Finished]]:
    """Return the best finished outputs of each sentence, best first; at most `settings.beam`, and none only if logits are not finite.

    Without a patience a sentence is done when its `nbest` best finished scores are at least log P / penalty(maximum length) of its best
    live hypothesis. This is an upper bound of later scores: log P can only fall, and the length penalty is largest at the maximum
    length. A beam of 1 is greedy search, which ends with the first end token.

    Args:
        model: a model or an ensemble, in evaluation mode.
        source: (B, S) token ids, padded on the right.
        source_mask: (B, S), True at real tokens.
        settings: settings of the search.
        prefix: (B, P) tokens that each output begins with, padded on the right; None for any beginning.
        most_positions: number of learned positions of the model, which bounds the tokens of an output; None for no bound.
    """
    limits = Limits.of(source_mask, settings.max_extra, prefix, most_positions)
    return _BeamSearch(limits, settings).run(model, source, source_mask)


class _BeamSearch(Hypotheses):
    CHANGING = (*Hypotheses.CHANGING, "ended")

    def __init__(self, limits: Limits, settings: Search) -> None:
        super().__init__(limits, settings.beam)
        self._settings = settings
        self.ended = torch.zeros_like(limits.max_length)
        lengths = torch.arange(int(limits.max_length.max()) + 1, dtype=torch.float64, device=self.device)
        # Bounded, because a score of -inf over inf would be no number.
        self._penalties = length_penalty(lengths, settings.alpha, settings.penalty).clamp(max=torch.finfo(torch.float32).max)

    def extend(self, logits: Tensor) -> Tensor:
        """Select the best 2K continuations of each sentence's live hypotheses; the K best that have not ended stay alive."""
        batch, hypotheses = self.live.shape
        beam = self._settings.beam
        # Each hypothesis has one continuation that ends, so at least K of the 2K best have not ended.
        wanted = 2 * beam if beam > 1 else 1
        log_probability, token = self._next_tokens(logits, min(wanted, logits.shape[1]))
        total = self.live[:, :, None] + log_probability.view(batch, hypotheses, -1)
        best, choice = total.flatten(1).topk(min(wanted, total[0].numel()), dim=1)
        parents, token = choice // total.shape[2], token.view(batch, -1).gather(1, choice)
        ended = token == EOS
        if self._settings.patience is not None:
            # With a patience, only hypotheses that end among the K best count.
            best[:, beam:] = best[:, beam:].masked_fill(ended[:, beam:], -torch.inf)
            if self.length == 0 and beam > 1:
                best = best.masked_fill(ended & (self.max_length > 1)[:, None], -torch.inf)
        finished = best.masked_fill(~ended, -torch.inf)
        self.ended = self.ended + (finished > -torch.inf).sum(dim=1)
        scores = finished / self._penalties.index_select(0, self.at + 1).to(finished.dtype)
        self.finish(scores, finished, parents)
        live, order = best.masked_fill(ended, -torch.inf).topk(max(1, min(beam, best.shape[1] - hypotheses)), dim=1)
        parents = parents.gather(1, order)
        self.advance(live, parents, token.gather(1, order))
        none_live = self.live[:, 0] == -torch.inf  # The best of them: no more can end, although a patience may wait for it.
        self.done |= self._enough() | none_live | (self.max_length <= self.at)
        return parents

    def _enough(self) -> Tensor:
        """Return whether each sentence has enough finished outputs, (B,)."""
        if self._settings.patience is not None:
            return self.ended >= self._settings.beam * self._settings.patience
        scores, nbest = self.finished.scores, self._settings.nbest
        if scores.shape[1] < nbest:
            return torch.zeros_like(self.done)
        return scores[:, nbest - 1] >= self.live[:, 0] / self._penalties[self.max_length].to(self.live.dtype)

    def keep(self, places: Tensor) -> None:
        super().keep(places)
        self.ended = self.ended[places]

    def _next_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest tokens after each hypothesis: log-probability and token id, both (B*K, count)."""
        forced = self.forced()
        only = None if forced is None else forced.repeat_interleave(self.live.shape[1])[:, None]
        logit_of_forced = None if only is None else logits.gather(1, only)  # Before `log_normaliser` forbids UNK, which a prefix may have.
        normaliser, maxima = self.log_normaliser(logits)
        best, token = top_logits(logits, count, maxima)
        log_probability = best.to(normaliser.dtype) - normaliser[:, None]
        if only is not None and logit_of_forced is not None:
            alone = torch.full_like(log_probability, -torch.inf)
            alone[:, :1] = logit_of_forced.to(normaliser.dtype) - normaliser[:, None]
            log_probability, token = torch.where(only == PAD, log_probability, alone), torch.where(only == PAD, token, only)
        return log_probability, token
