"""Forced decoding: how probable a model holds a translation that is given to it, token by token."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_core.corpus.subword import BOS, EOS, PAD, Subword
from transformer_core.decoding.translator import batches_of, padded
from transformer_core.errors import UserError
from transformer_core.models.translation import TranslationModel

# Logits that stand at once: 16 MB in float32, and their softmax as much again.
_LOGITS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Score:
    """A target under a model: its pieces, end token included, and the natural logarithm of each one's probability."""

    pieces: list[str]
    log_probabilities: list[float]

    @property
    def log_probability(self) -> float:
        """Of the whole target."""
        return math.fsum(self.log_probabilities)


def score_pairs(
    model: TranslationModel, subword: Subword, sources: Sequence[list[int]], targets: Sequence[list[int]], batch_tokens: int
) -> list[Score]:
    """As `score_tokens`, with the targets' pieces."""
    scored = score_tokens(model, sources, targets, batch_tokens)
    return [Score(subword.processor.id_to_piece(target), found) for target, found in zip(targets, scored, strict=True)]


@torch.inference_mode()
def score_tokens(
    model: TranslationModel, sources: Sequence[list[int]], targets: Sequence[list[int]], batch_tokens: int
) -> list[list[float]]:
    """log P of each target token, given the source and the target tokens before it.

    A softmax over all of V, as beam search takes it, so that an output's log-probability there is its sum here. A pair's result depends
    on that pair alone, up to rounding. A source of an end token alone is an empty line, whose translation is empty by definition: log P
    is then 0 for a target that is empty too, and minus infinity for every token of any other.

    Args:
        model: in evaluation mode.
        sources: token ids, end token included; none longer than the model's `most_positions`.
        targets: the same, one for each source.
        batch_tokens: most rows times longest side of what is scored together; a longer pair is scored alone.

    Returns:
        For each pair as many numbers as its target has tokens; not less exact than float32.
    """
    results = [[0.0 if target == [EOS] else -math.inf] * len(target) for target in targets]
    device = model.device
    # An empty source is left out of the batches, as it is in translating.
    longest = [max(len(source), len(target)) if source != [EOS] else 0 for source, target in zip(sources, targets, strict=True)]
    for numbers in batches_of(longest, batch_tokens):
        source, target = (padded([side[number] for number in numbers]).to(device) for side in (sources, targets))
        shifted = torch.cat((torch.full_like(target[:, :1], BOS), target[:, :-1]), dim=1)
        decoded = model(source, source != PAD, shifted)
        real = target != PAD
        found = _log_probabilities(model, decoded[real], target[real])
        for number, row in zip(numbers, found.split([len(targets[number]) for number in numbers]), strict=True):
            results[number] = row.tolist()
    return results


def check_length(model: TranslationModel, tokens: Sequence[int], where: str) -> None:
    """Refuse what the model has no positions for; `where` says what it is: a file and line, for example.

    Raises:
        UserError: exit code 65.
    """
    if model.most_positions is not None and len(tokens) > model.most_positions:
        raise UserError(
            f"{where}: {len(tokens)} tokens, but this model has learned {model.most_positions} positions", "Split the sentence."
        )


def perplexity(log_probability: float, tokens: int) -> float:
    """exp(-log P / tokens); infinite where a float holds no such number, not a number for no token at all."""
    if tokens == 0:
        return math.nan
    try:
        return math.exp(-log_probability / tokens)
    except OverflowError:
        return math.inf


def _log_probabilities(model: TranslationModel, decoded: Tensor, truth: Tensor) -> Tensor:
    """(n, D) and (n,) token ids to the log-probability of each, (n,); never (n, V) at once."""
    rows = max(1, _LOGITS_AT_ONCE // len(model.output_weight))
    parts = []
    for hidden, wanted in zip(decoded.split(rows), truth.split(rows), strict=True):
        logits = model.project(hidden)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        parts.append(exact.gather(1, wanted[:, None])[:, 0])
    return torch.cat(parts)
