"""Hypotheses of a batch of sentences, extended by a token per step: the common part of beam search and sampling."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.corpus.tokens.subword import BOS, EOS, PAD
from transformer_core.models.precision import can_compile
from transformer_core.models.translation import DecoderState

# Counting the sentences that are done makes the host wait for a GPU, so on a GPU they are counted only once in this many steps.
_STEPS_BETWEEN_COUNTS = 8
# Removing sentences copies the state of the others, so sentences that are done are removed only when they reach this share. On a GPU the
# next steps are also captured anew, which takes longer than the steps that are left in a batch of fewer hypotheses than this.
_SHARE_DONE, _SHARE_DONE_ON_GPU, _FEW_ON_GPU = 1 / 8, 1 / 2, 4_096
# Rows of logits are folded into a multiple of this many columns; the reduction is then over rows of whole vectors (ten times as fast).
_FOLD = 64
_STEPS_AT_FIRST = 128  # Positions of outputs that memory is reserved for at first.


class StepModel(Protocol):
    """The part of a TranslationModel, or of an ensemble, that decoding needs."""

    def start(self, source: Tensor, source_mask: Tensor) -> DecoderState: ...

    def step(self, tokens: Tensor, state: Any) -> Tensor: ...


@runtime_checkable
class Captures(StepModel, Protocol):
    """A StepModel that can make the steps of a search in another way than `Hypotheses.step`."""

    def captured(self, search: "Hypotheses", state: Any) -> Callable[[], None]: ...


class Finished(NamedTuple):
    """A complete output: token ids with the end token, its log-probability, and the score that ranks it."""

    tokens: list[int]
    log_probability: float
    score: float


class Limits(NamedTuple):
    """Bounds of the outputs of B sentences.

    Attributes:
        max_length: (B,) largest number of tokens, end token included.
        prefix: (B, P) tokens that each output begins with, padded on the right; None for any beginning.
    """

    max_length: Tensor
    prefix: Tensor | None

    @classmethod
    def of(cls, source_mask: Tensor, max_extra: int, prefix: Tensor | None, most_positions: int | None) -> "Limits":
        """Return the bounds of outputs of these sources.

        An output may have `max_extra` tokens more than its source without the end token, or its prefix and one token more if that is
        longer; in any case at most `most_positions` tokens.
        """
        longest = source_mask.sum(dim=1) - 1 + max_extra
        if prefix is not None:
            longest = torch.maximum(longest, (prefix != PAD).sum(dim=1) + 1)
        return cls(longest if most_positions is None else longest.clamp(max=most_positions), prefix)


class _FinishedHypotheses(NamedTuple):
    """Up to K finished hypotheses per sentence, best first, all (B, K'); `parent` is the live hypothesis that the end token follows."""

    scores: Tensor
    log_probability: Tensor
    length: Tensor
    parent: Tensor


class Hypotheses(ABC):
    """Live and finished hypotheses of the B sentences that have not been removed yet.

    A step depends on its number only through `at`, so that it can be captured in a CUDA graph (graphs.py).

    Attributes:
        live: (B, K) log-probabilities of the live hypotheses.
        done: (B,), True if a sentence needs no more outputs; it is decoded further without effect until it is removed.
        finished: finished hypotheses of each sentence.
        length: number of tokens of every live hypothesis; `at`, (1,), is the same number on the device.
        newest: (B*K,) newest token of each live hypothesis.
        rows: (B*K,) hypothesis of the step before that each live one extends, among those of all sentences; None before the first step.
        trace: (T, 2, B, K) tokens of each step, and the hypotheses that they extend; it grows, since most outputs are far shorter than the
            maximum length.
        CHANGING: the attributes that a step replaces by others of the same shape, from the third step on; it writes into `trace`.
    """

    CHANGING: tuple[str, ...] = ("live", "done", "finished", "at", "newest", "rows")

    def __init__(self, limits: Limits, most: int) -> None:
        batch, self.device = len(limits.max_length), limits.max_length.device
        self.max_length, self._prefix = limits
        self.live = torch.zeros(batch, 1, device=self.device)
        self.done = torch.zeros(batch, dtype=torch.bool, device=self.device)
        nothing = torch.zeros(batch, 0, device=self.device)
        self.finished = _FinishedHypotheses(nothing, nothing, nothing.long(), nothing.long())
        self.length, self.at = 0, torch.zeros(1, dtype=torch.long, device=self.device)
        self.newest = torch.full((batch,), BOS, device=self.device)
        self.rows: Tensor | None = None
        self._most = most
        self._results: list[list[Finished]] = [[] for _ in range(batch)]
        self._sentences: NDArray[np.int64] = np.arange(batch)
        self._max_lengths: NDArray[np.int64] = self.max_length.numpy(force=True)
        steps = min(_STEPS_AT_FIRST, int(self._max_lengths.max()))
        self.trace = torch.zeros(steps, 2, batch, most, dtype=torch.long, device=self.device)

    @abstractmethod
    def extend(self, logits: Tensor) -> Tensor:
        """Extend the live hypotheses by a token: from K of them (one at first) to K'.

        Args:
            logits: (B*K, V); changed in place.

        Returns:
            (B, K') the hypothesis that each new one extends, by its index within the sentence.
        """

    def run(self, model: StepModel, source: Tensor, source_mask: Tensor) -> list[list[Finished]]:
        """Extend until every sentence is done; return the finished outputs of each, best first; none if one has a score of NaN.

        Such a score comes from logits that are not finite. The sentence may then lack other outputs, too.
        """
        state = model.start(source, source_mask)
        step = model.captured(self, state) if isinstance(model, Captures) else partial(self.step, model, state)
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

    def keep(self, places: Tensor) -> None:
        """Continue with only the sentences at these indices, (B',)."""
        kept = places.numpy(force=True)
        self._sentences, self._max_lengths = self._sentences[kept], self._max_lengths[kept]
        self.newest = self.newest.view(self.live.shape)[places].flatten()
        self.max_length, self.live, self.done = self.max_length[places], self.live[places], self.done[places]
        self.finished = _FinishedHypotheses(*(part[places] for part in self.finished))
        self._prefix = None if self._prefix is None else self._prefix[places]
        self.trace = self.trace.index_select(2, places)

    def log_normaliser(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return log-sum-exp of the logits, (B*K,), over the whole vocabulary; then set `logits` of PAD, UNK and BOS to minus infinity.

        Where kernels can be compiled, also return the maxima of these logits for `top_logits`.
        """
        blocks, size = _folding(logits.shape[1])
        maxima = None
        if size and logits.dtype != torch.float64 and can_compile(logits.device):
            from transformer_core.models.ops.logits_kernel import normaliser_and_maxima  # It needs Triton, which a CPU's torch has not.

            normaliser, maxima = normaliser_and_maxima(logits, blocks, BOS + 1)
        else:
            normaliser = logsumexp(logits)
        logits[:, PAD : BOS + 1] = -torch.inf  # No list of columns: it would be copied to a GPU, and the host would wait for that.
        return normaliser, maxima

    @property
    def forcing(self) -> tuple[bool, bool]:
        """Whether a sentence may be at its maximum length, and whether it may be inside its prefix, in the next step."""
        return bool(self.length + 1 >= self._max_lengths.min()), self._prefix is not None and self.length < self._prefix.shape[1]

    def forced(self) -> Tensor | None:
        """Return the forced next token, (B,): the prefix's, or the end token at the maximum length; PAD for sentences without one.

        None if no sentence has a forced token.
        """
        last, inside = self.forcing
        if not (last or inside):
            return None
        if inside and self._prefix is not None:
            token = self._prefix.index_select(1, self.at).squeeze(1)
        else:
            token = torch.full_like(self.max_length, PAD)
        return token.masked_fill(self.max_length <= self.at + 1, EOS)

    def advance(self, live: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Continue with these hypotheses, all (B, K'): log-probabilities, the hypotheses that they extend, newest tokens."""
        self.live, self.newest = live, tokens.flatten()
        self.trace[:, :, :, : tokens.shape[1]].index_copy_(0, self.at, torch.stack((tokens, parents))[None])
        self.length, self.at = self.length + 1, self.at + 1

    def finish(self, scores: Tensor, log_probability: Tensor, parents: Tensor) -> None:
        """Add hypotheses (B, n) that end with the next token to the finished ones and keep the best; minus infinity marks no hypothesis."""
        new = _FinishedHypotheses(
            scores.masked_fill(self.done[:, None], -torch.inf), log_probability, (self.at + 1).expand_as(parents), parents
        )
        both = _FinishedHypotheses(*(torch.cat(parts, dim=1) for parts in zip(self.finished, new, strict=True)))
        best, order = both.scores.topk(min(self._most, both.scores.shape[1]), dim=1)
        self.finished = _FinishedHypotheses(best, *(part.gather(1, order) for part in both[1:]))

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
        self.keep(kept)
        return kept

    def _collect(self, places: Tensor) -> None:
        scores, log_probability, lengths, parents = (part[places].numpy(force=True) for part in self.finished)
        tokens = _traced_back(self.trace[: self.length, :, places].numpy(force=True), lengths, parents)
        for row, sentence in enumerate(self._sentences[places.numpy(force=True)]):
            if np.isnan(scores[row]).any():
                continue
            self._results[sentence] = [
                Finished(tokens[row, place, : lengths[row, place]].tolist(), log_probability[row, place].item(), score)
                for place, score in enumerate(scores[row].tolist())
                if score > -math.inf
            ]


def _traced_back(trace: NDArray[np.int64], lengths: NDArray[np.int64], parents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens of outputs, traced back from the live hypotheses before their end tokens.

    Args:
        trace: (T, 2, B, K) tokens and extended hypotheses of each step.
        lengths: (B, N) tokens of each output, at most T.
        parents: (B, N) hypotheses that the end tokens follow.

    Returns:
        (B, N, T), with end tokens from an output's last token on.
    """
    tokens, first = np.full((len(trace), *lengths.shape), EOS), trace.shape[3] * np.arange(len(lengths))[:, None]
    places, steps = first + parents, trace.reshape(len(trace), 2, -1)  # Hypotheses among those of all sentences.
    for step in reversed(range(len(trace))):
        inside = step < lengths - 1
        np.copyto(tokens[step], steps[step, 0].take(places), where=inside)
        np.copyto(places, first + steps[step, 1].take(places), where=inside)
    return tokens.transpose(1, 2, 0)


def logsumexp(logits: Tensor) -> Tensor:
    """Return log-sum-exp of each row, (R, V) to (R,), in at least float32; it does not depend on the other rows.

    `torch.logsumexp` divides a single long row among threads, and copies low precision.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    top, column = logits.max(dim=1, keepdim=True)
    return (top.to(exact) - logits.log_softmax(dim=1, dtype=exact).gather(1, column)).squeeze(1)


def _folding(columns: int) -> tuple[int, int]:
    """Return the number of blocks into which a row of logits is folded, and their size; that is 0 for a short row."""
    blocks = max(1, columns // _FOLD**2) * _FOLD
    return blocks, columns // blocks


def top_logits(logits: Tensor, count: int, maxima: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the `count` largest logits of each row and their columns, both (R, count), in one pass over the row; topk takes several.

    A row is folded into blocks of equally spaced columns, with size and number of blocks about equal if V allows it. The `count` largest
    logits are in the `count` blocks with the largest maxima or among the columns left over in folding, so topk is applied only to these.
    The maxima of the blocks, (R, blocks), may be known.
    """
    blocks, size = _folding(logits.shape[1])
    if size == 0 or blocks <= count:
        return logits.topk(count, dim=1)
    folded, rest = logits[:, : size * blocks].unflatten(1, (size, blocks)), logits[:, size * blocks :]
    chosen = (folded.amax(dim=1) if maxima is None else maxima).topk(count, dim=1).indices[:, None]
    inside = folded.gather(2, chosen.expand(-1, size, -1)).flatten(1)
    places = (chosen + torch.arange(0, size * blocks, blocks, device=logits.device)[:, None]).flatten(1)
    left = torch.arange(size * blocks, logits.shape[1], device=logits.device).expand(len(logits), -1)
    best, order = torch.cat((inside, rest), dim=1).topk(count, dim=1)
    return best, torch.cat((places, left), dim=1).gather(1, order)
