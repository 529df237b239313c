"""Beam search with the paper's length penalty; it stops when no live hypothesis can become better than the best outputs (paper 6.1)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.config import PAPER_SEARCH, Penalty
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD
from transformer_core.decoding.hypotheses import Finished, FinishedHypotheses, StepModel, log_normaliser, top_logits, traced_back
from transformer_core.models.ops.decoding_graphs import CapturedSteps, GraphedTransformer
from transformer_core.models.translation import DecoderState

# Counting the sentences that are done makes the host wait for a GPU, so on a GPU they are counted only once in this many steps.
_STEPS_BETWEEN_COUNTS = 8
# Removing sentences copies the state of the others, so sentences that are done are removed only when they reach this share. On a GPU the
# next steps are also captured anew, which takes longer than the steps that are left in a batch of fewer hypotheses than this.
_SHARE_DONE, _SHARE_DONE_ON_GPU, _FEW_ON_GPU = 1 / 8, 1 / 2, 4_096
_STEPS_AT_FIRST = 128  # Positions of outputs that memory is reserved for at first.


@dataclass(frozen=True)
class Search:
    """Settings of beam search."""

    beam: int = PAPER_SEARCH.beam  # K, the number of hypotheses kept per sentence.
    alpha: float = PAPER_SEARCH.alpha  # Exponent of the length penalty; 0 for none.
    penalty: Penalty = PAPER_SEARCH.penalty  # Kind of length penalty, see `length_penalty`.
    # At least 1; an output, end token included, has at most this many tokens more than its source without the end token.
    max_extra: int = PAPER_SEARCH.max_extra
    # A sentence is done when `beam` times this many hypotheses have ended among its K best (Kasai et al. 2022; 1 is the rule of
    # fairseq and CTranslate2). With a beam above 1 no output is then empty, as in these: the end token at once is seldom good, but
    # often among the K best, and would end the search too early. None continues until the `nbest` best outputs are final.
    patience: float | None = None
    nbest: int = 1  # Number of outputs that, without a patience, are the same as those of a search to the maximum length.


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
        most_positions: number of learned positions of the model, which bounds the tokens of an output; None for no bound. A prefix may
            be longer than `settings.max_extra` allows; then one token more may follow it.
    """
    longest = source_mask.sum(dim=1) - 1 + settings.max_extra
    if prefix is not None:
        longest = torch.maximum(longest, (prefix != PAD).sum(dim=1) + 1)
    search = _BeamSearch(longest if most_positions is None else longest.clamp(max=most_positions), prefix, settings)
    return search.run(model, source, source_mask)


class _BeamSearch:
    """Live and finished hypotheses of the B sentences that have not been removed yet.

    A step depends on its number only through `at`, so that it can be captured in a CUDA graph (models/ops/decoding_graphs.py).

    Attributes:
        max_length: (B,) largest number of tokens of an output, end token included.
        live: (B, K) log-probabilities of the live hypotheses.
        done: (B,), True if a sentence needs no more outputs; it is decoded further without effect until it is removed.
        finished: finished hypotheses of each sentence.
        ended: (B,) number of hypotheses that have ended.
        length: number of tokens of every live hypothesis; `at`, (1,), is the same number on the device.
        newest: (B*K,) newest token of each live hypothesis.
        rows: (B*K,) hypothesis of the step before that each live one extends, among those of all sentences; None before the first step.
        trace: (T, 2, B, K) tokens of each step, and the hypotheses that they extend; it grows, since most outputs are far shorter than the
            maximum length.
        CHANGING: the attributes that a step replaces by others of the same shape, from the third step on; it writes into `trace`.
    """

    CHANGING = ("live", "done", "finished", "ended", "at", "newest", "rows")

    def __init__(self, max_length: Tensor, prefix: Tensor | None, settings: Search) -> None:
        batch, self.device = len(max_length), max_length.device
        self.max_length, self._prefix, self._settings = max_length, prefix, settings
        self.live = torch.zeros(batch, 1, device=self.device)
        self.done = torch.zeros(batch, dtype=torch.bool, device=self.device)
        nothing = torch.zeros(batch, 0, device=self.device)
        self.finished = FinishedHypotheses(nothing, nothing, nothing.long(), nothing.long())
        self.ended = torch.zeros_like(max_length)
        self.length, self.at = 0, torch.zeros(1, dtype=torch.long, device=self.device)
        self.newest = torch.full((batch,), BOS, device=self.device)
        self.rows: Tensor | None = None
        self._results: list[list[Finished]] = [[] for _ in range(batch)]
        self._sentences: NDArray[np.int64] = np.arange(batch)
        self._max_lengths: NDArray[np.int64] = max_length.numpy(force=True)
        longest = int(self._max_lengths.max())
        self.trace = torch.zeros(min(_STEPS_AT_FIRST, longest), 2, batch, settings.beam, dtype=torch.long, device=self.device)
        lengths = torch.arange(longest + 1, dtype=torch.float64, device=self.device)
        # Bounded, because a score of -inf over inf would be no number.
        self._penalties = length_penalty(lengths, settings.alpha, settings.penalty).clamp(max=torch.finfo(torch.float32).max)

    def run(self, model: StepModel, source: Tensor, source_mask: Tensor) -> list[list[Finished]]:
        """Extend until every sentence is done; return the finished outputs of each, best first; none if one has a score of NaN.

        Such a score comes from logits that are not finite. The sentence may then lack other outputs, too.
        """
        state = model.start(source, source_mask)
        step = CapturedSteps(model, self, state) if isinstance(model, GraphedTransformer) else partial(self.step, model, state)
        while True:
            if self.length == len(self.trace):
                self.trace = torch.cat((self.trace, torch.zeros_like(self.trace)))
            step()
            kept = self._remove_done()
            if not len(self._sentences):
                return self._results
            if kept is not None and self.rows is not None:
                state.select(self.rows.unflatten(0, (-1, self.live.shape[1]))[kept].flatten(), kept)
                self.rows = None

    def step(self, model: StepModel, state: DecoderState) -> None:
        """Make the last step's selection of hypotheses, unless sentences were removed with it, and extend the live hypotheses."""
        if self.rows is not None:
            state.select(self.rows, None)
        before = self.live.shape[1]
        parents = self.extend(model.step(self.newest, state))
        self.rows = (parents + before * torch.arange(len(parents), device=self.device)[:, None]).flatten()

    def extend(self, logits: Tensor) -> Tensor:
        """Select the best 2K continuations of each sentence's live hypotheses; the K best that have not ended stay alive.

        `logits`, (B*K, V), are changed in place. Return the hypothesis that each new one extends, (B, K'), by its index in the sentence.
        """
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
        self._finish(scores, finished, parents)
        live, order = best.masked_fill(ended, -torch.inf).topk(max(1, min(beam, best.shape[1] - hypotheses)), dim=1)
        parents, token = parents.gather(1, order), token.gather(1, order)
        self.live, self.newest = live, token.flatten()
        self.trace[:, :, :, : token.shape[1]].index_copy_(0, self.at, torch.stack((token, parents))[None])
        self.length, self.at = self.length + 1, self.at + 1
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

    def _next_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest tokens after each hypothesis: log-probability and token id, both (B*K, count)."""
        forced = self._forced()
        only = None if forced is None else forced.repeat_interleave(self.live.shape[1])[:, None]
        logit_of_forced = None if only is None else logits.gather(1, only)  # Before `log_normaliser` forbids UNK, which a prefix may have.
        normaliser, maxima = log_normaliser(logits)
        best, token = top_logits(logits, count, maxima)
        log_probability = best.to(normaliser.dtype) - normaliser[:, None]
        if only is not None and logit_of_forced is not None:
            alone = torch.full_like(log_probability, -torch.inf)
            alone[:, :1] = logit_of_forced.to(normaliser.dtype) - normaliser[:, None]
            log_probability, token = torch.where(only == PAD, log_probability, alone), torch.where(only == PAD, token, only)
        return log_probability, token

    @property
    def forcing(self) -> tuple[bool, bool]:
        """Whether a sentence may be at its maximum length, and whether it may be inside its prefix, in the next step."""
        return bool(self.length + 1 >= self._max_lengths.min()), self._prefix is not None and self.length < self._prefix.shape[1]

    def _forced(self) -> Tensor | None:
        """Return the forced next token, (B,): the prefix's, the end token at the maximum length, else PAD; None if no sentence has one."""
        last, inside = self.forcing
        if not (last or inside):
            return None
        if inside and self._prefix is not None:
            token = self._prefix.index_select(1, self.at).squeeze(1)
        else:
            token = torch.full_like(self.max_length, PAD)
        return token.masked_fill(self.max_length <= self.at + 1, EOS)

    def _finish(self, scores: Tensor, log_probability: Tensor, parents: Tensor) -> None:
        """Add hypotheses (B, n) that end with the next token to the finished ones and keep the best; minus infinity marks no hypothesis."""
        wanted = scores.masked_fill(self.done[:, None], -torch.inf)
        new = FinishedHypotheses(wanted, log_probability, (self.at + 1).expand_as(parents), parents)
        both = FinishedHypotheses(*(torch.cat(parts, dim=1) for parts in zip(self.finished, new, strict=True)))
        best, order = both.scores.topk(min(self._settings.beam, both.scores.shape[1]), dim=1)
        self.finished = FinishedHypotheses(best, *(part.gather(1, order) for part in both[1:]))

    def _remove_done(self) -> Tensor | None:
        """Remove sentences that are done, if enough are; return the indices of those that stay, or None if all stay."""
        if self.length < self._max_lengths.max():
            share = _SHARE_DONE
            if self.device.type != "cpu":
                if self.length % _STEPS_BETWEEN_COUNTS:
                    return None
                share = _SHARE_DONE_ON_GPU if self.live.numel() > _FEW_ON_GPU else 1.0
            if int(self.done.sum()) < max(1, len(self.done) * share):
                return None
        self._collect(self.done.nonzero().flatten())
        kept = (~self.done).nonzero().flatten()
        self._keep(kept)
        return kept

    def _collect(self, places: Tensor) -> None:
        scores, log_probability, lengths, parents = (part[places].numpy(force=True) for part in self.finished)
        tokens = traced_back(self.trace[: self.length, :, places].numpy(force=True), lengths, parents)
        for row, sentence in enumerate(self._sentences[places.numpy(force=True)]):
            if np.isnan(scores[row]).any():
                continue
            self._results[sentence] = [
                Finished(tokens[row, place, : lengths[row, place]].tolist(), log_probability[row, place].item(), score)
                for place, score in enumerate(scores[row].tolist())
                if score > -math.inf
            ]

    def _keep(self, places: Tensor) -> None:
        """Continue with only the sentences at these indices, (B',)."""
        kept = places.numpy(force=True)
        self._sentences, self._max_lengths = self._sentences[kept], self._max_lengths[kept]
        self.newest = self.newest.view(self.live.shape)[places].flatten()
        self.max_length, self.live, self.done = self.max_length[places], self.live[places], self.done[places]
        self.ended = self.ended[places]
        self.finished = FinishedHypotheses(*(part[places] for part in self.finished))
        self._prefix = None if self._prefix is None else self._prefix[places]
        self.trace = self.trace.index_select(2, places)
