"""Scores of a model on a held-out split, with teacher forcing and without dropout."""

from collections.abc import Callable

import numpy as np
import torch

from transformer_core.config import MOST_INPUT, Precision
from transformer_core.corpus.tokens.batches import BatchPlan, Indices
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.models.translation import TranslationModel
from transformer_core.training.devices import Rank, autocast
from transformer_core.training.loader import make_batch
from transformer_core.training.loss import Loss, cross_entropy, perplexity

_TOKENS_PER_BATCH = 8192


def try_largest(model: TranslationModel, split: BinarizedSplit, device: torch.device, precision: Precision) -> None:
    """Use as much memory as `score_split` does."""
    scored = _scored(split)
    model.eval()
    with torch.no_grad(), autocast(device, precision):
        for pairs in _plan(split, scored).largest():
            _losses(model, split, scored[pairs], device)


def score_split(
    model: TranslationModel, split: BinarizedSplit, rank: Rank, precision: Precision, stop_asked: Callable[[], bool]
) -> dict[str, float] | None:
    """Return negative log-likelihood and perplexity per target token (end tokens counted), and the share of tokens predicted correctly.

    Pairs with a side of more than `MOST_INPUT` tokens are left out. Ranks share the batches and return the same scores, or None if any rank
    was asked to stop between two batches.
    """
    model.eval()
    scored = _scored(split)
    microbatches = [scored[pairs] for update in _plan(split, scored).epoch(0) for pairs in update.microbatches]
    totals = torch.zeros(3, dtype=torch.float64, device=rank.device)
    with torch.no_grad(), autocast(rank.device, precision):
        for pairs in microbatches[rank.index :: rank.world_size]:
            if stop_asked():
                totals[2] = 1
                break
            loss = _losses(model, split, pairs, rank.device)
            totals[:2] += torch.stack((loss.nll, loss.correct)).double()
    rank.sum_over_ranks(totals)
    (nll, correct, stopped), tokens = totals.tolist(), int(split.target.lengths[scored].sum())
    if stopped:
        return None
    return {"nll": nll / tokens, "perplexity": perplexity(nll / tokens), "accuracy": correct / tokens}


def _scored(split: BinarizedSplit) -> Indices:
    """Return the numbers of the pairs that are scored."""
    return np.flatnonzero(np.maximum(split.source.lengths, split.target.lengths) <= MOST_INPUT + 1)


def _plan(split: BinarizedSplit, scored: Indices) -> BatchPlan:
    return BatchPlan(split.source.lengths[scored], split.target.lengths[scored], _TOKENS_PER_BATCH, _TOKENS_PER_BATCH, seed=0)


def _losses(model: TranslationModel, split: BinarizedSplit, pairs: Indices, device: torch.device) -> Loss:
    batch = make_batch(split.pairs(pairs)).to(device)
    return cross_entropy(batch.decoded(model), model.output_weight, batch.targets, label_smoothing=0.0)
