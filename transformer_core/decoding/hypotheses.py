"""What beam search extends and returns, and the computations on its logits and its trace."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.corpus.tokens.subword import BOS, EOS, PAD
from transformer_core.models.precision import can_compile
from transformer_core.models.translation import DecoderState

# Rows of logits are folded into a multiple of this many columns; the reduction is then over rows of whole vectors (ten times as fast).
_FOLD = 64


class StepModel(Protocol):
    """The part of a TranslationModel, or of an ensemble, that decoding needs."""

    def start(self, source: Tensor, source_mask: Tensor) -> DecoderState: ...

    def step(self, tokens: Tensor, state: Any) -> Tensor: ...


class Finished(NamedTuple):
    """A complete output: token ids with the end token, its log-probability, and the score that ranks it."""

    tokens: list[int]
    log_probability: float
    score: float


class FinishedHypotheses(NamedTuple):
    """Up to K finished hypotheses per sentence, best first, all (B, K'); `parent` is the live hypothesis that the end token follows."""

    scores: Tensor
    log_probability: Tensor
    length: Tensor
    parent: Tensor


def traced_back(trace: NDArray[np.int64], lengths: NDArray[np.int64], parents: NDArray[np.int64]) -> NDArray[np.int64]:
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


def log_normaliser(logits: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return log-sum-exp of the logits, (B*K,), over the whole vocabulary; then set `logits` of PAD, UNK and BOS to minus infinity.

    Where kernels can be compiled, also return the maxima of these logits for `top_logits`.
    """
    blocks, size = _folding(logits.shape[1])
    maxima = None
    if size and logits.dtype != torch.float64 and can_compile(logits.device):
        from transformer_core.models.ops.logits_kernels import normaliser_and_maxima  # It needs Triton, which a CPU's torch has not.

        normaliser, maxima = normaliser_and_maxima(logits, blocks, BOS + 1)
    else:
        normaliser = logsumexp(logits)
    logits[:, PAD : BOS + 1] = -torch.inf  # No list of columns: it would be copied to a GPU, and the host would wait for that.
    return normaliser, maxima


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
