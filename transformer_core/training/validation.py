"""Scores of a model on a held-out split, with teacher forcing and without dropout."""

from collections.abc import Callable

import numpy as np
import torch

from transformer_core.config import MOST_INPUT, Precision
from transformer_core.corpus.tokens.batches import BatchPlan
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.models.translation import TranslationModel
from transformer_core.training.devices import Rank, autocast
from transformer_core.training.loader import make_batch
from transformer_core.training.loss import cross_entropy, perplexity

_TOKENS_PER_BATCH = 8192


def score_split(
    model: TranslationModel, split: BinarizedSplit, rank: Rank, precision: Precision, stop_asked: Callable[[], bool]
) -> dict[str, float] | None:
    """Return negative log-likelihood and perplexity per target token (end tokens counted), and the share of tokens predicted correctly.

    Pairs with a side of more than `MOST_INPUT` tokens are left out. Ranks share the batches and return the same scores, or None if any rank
    was asked to stop between two batches.
    """
    model.eval()
    sources, targets = split.source.lengths, split.target.lengths
    scored = np.flatnonzero(np.maximum(sources, targets) <= MOST_INPUT + 1)
    plan = BatchPlan(sources[scored], targets[scored], _TOKENS_PER_BATCH, _TOKENS_PER_BATCH, seed=0)
    microbatches = [scored[pairs] for update in plan.epoch(0) for pairs in update.microbatches]
    totals = torch.zeros(3, dtype=torch.float64, device=rank.device)
    with torch.no_grad(), autocast(rank.device, precision):
        for pairs in microbatches[rank.index :: rank.world_size]:
            if stop_asked():
                totals[2] = 1
                break
            batch = make_batch(split.pairs(pairs)).to(rank.device)
            loss = cross_entropy(batch.decoded(model), model.output_weight, batch.targets, label_smoothing=0.0)
            totals[:2] += torch.stack((loss.nll, loss.correct)).double()
    rank.sum_over_ranks(totals)
    (nll, correct, stopped), tokens = totals.tolist(), int(targets[scored].sum())
    if stopped:
        return None
    return {"nll": nll / tokens, "perplexity": perplexity(nll / tokens), "accuracy": correct / tokens}
