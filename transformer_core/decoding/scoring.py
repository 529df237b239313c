"""Forced decoding: the log-probability of a given translation under a model, token by token."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_core.corpus.tokens.subword import BOS, EOS, PAD, padded
from transformer_core.decoding.translator import batches_of
from transformer_core.models.translation import TranslationModel

_LOGITS_AT_ONCE = 1 << 22  # 16 MB in float32, and as much for their softmax.


@torch.inference_mode()
def score_tokens(
    model: TranslationModel, sources: Sequence[list[int]], targets: Sequence[list[int]], batch_tokens: int
) -> list[list[float]]:
    """Return log P of each target token, given the source and the target tokens before it, in at least float32.

    The softmax is over all of V, as in beam search, so the sum is an output's log-probability there. Up to rounding, the result of a pair
    does not depend on other pairs. A source with only an end token is an empty line, whose translation is empty by definition: log P is 0
    for an empty target, and minus infinity for every token of any other target.

    Args:
        sources: token ids, end token included; no side is longer than the model's `most_positions`.
        targets: one per source, also with end token.
        batch_tokens: largest product of rows and longest side of a batch; a longer pair is scored alone.
    """
    results = [[0.0 if target == [EOS] else -math.inf] * len(target) for target in targets]
    device = model.device
    # Empty sources are left out of the batches, as in translation.
    longest = [max(len(source), len(target)) if source != [EOS] else 0 for source, target in zip(sources, targets, strict=True)]
    for numbers in batches_of(longest, batch_tokens):
        source, target = (torch.from_numpy(padded([side[number] for number in numbers])).to(device) for side in (sources, targets))
        shifted = torch.cat((torch.full_like(target[:, :1], BOS), target[:, :-1]), dim=1)
        decoded = model(source, source != PAD, shifted)
        real = target != PAD
        found = _log_probabilities(model, decoded[real], target[real])
        for number, row in zip(numbers, found.split([len(targets[number]) for number in numbers]), strict=True):
            results[number] = row.tolist()
    return results


def _log_probabilities(model: TranslationModel, decoded: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probabilities (n,) of token ids (n,) after states (n, D), without a matrix of (n, V)."""
    rows = max(1, _LOGITS_AT_ONCE // len(model.output_weight))
    parts = []
    for hidden, wanted in zip(decoded.split(rows), targets.split(rows), strict=True):
        logits = model.project(hidden)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        parts.append(exact.gather(1, wanted[:, None])[:, 0])
    return torch.cat(parts)
