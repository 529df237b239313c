"""Two searches over one model, compared output by output; and a small model that has learnt something to search for."""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from tests.models.on_disk import VOCAB
from transformer_core.corpus.tokens import subword
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD
from transformer_core.decoding.beam import Search, beam_search, length_penalty
from transformer_core.decoding.hypotheses import Finished, StepModel
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import TransformerSize

Rows, Outputs = Sequence[Sequence[int]], Sequence[Sequence[Finished]]
TIE = 1e-4  # Of scores: what float32 leaves open between two engines, as it does between two batch sizes.
_WORDS = range(EOS + 1, EOS + 13)
_TIMES = (0, 1, 1, 1, 1, 1, 1, 2)

# How the best outputs of a sentence differ. A tie is a difference of scores below `TIE` and what `given_not_empty` does to it; an output
# without an end token is cut, and has no score to compare.
Kind = Literal["tie", "ours is better", "theirs is better", "theirs is cut"]


def differences(model: TranslationModel, sources: Rows, ours: Outputs, theirs: Outputs, settings: Search) -> list[Kind]:
    """Compare the best outputs of two searches, by the probability that our model gives either; the kind of each that differs."""
    found: list[Kind] = []
    for source, (mine, *_), (other, *_) in zip(sources, ours, theirs, strict=True):
        if mine.tokens == other.tokens:
            continue
        shares = [1 / length_penalty(float(len(output.tokens)), settings.alpha, settings.penalty) for output in (mine, other)]
        outputs = zip((mine, other), shares, strict=True)
        scores = [forced_log_probabilities(model, source, output.tokens).sum().item() * share for output, share in outputs]
        tie = TIE + given_not_empty(model, source, settings) * abs(shares[0] - shares[1])
        if other.tokens[-1] != EOS:
            found.append("theirs is cut")
        elif abs(scores[0] - scores[1]) < tie:
            found.append("tie")
        else:
            found.append("ours is better" if scores[0] > scores[1] else "theirs is better")
    return found


def given_not_empty(model: TranslationModel, source: Sequence[int], settings: Search) -> float:
    """What CTranslate2 adds to each log-probability: with a beam it excludes the empty output before the softmax, ours after it."""
    if settings.patience is None or settings.beam == 1:
        return 0.0
    return -math.log1p(-forced_log_probabilities(model, source, [EOS]).exp().item())


@torch.inference_mode()
def forced_log_probabilities(model: TranslationModel, source: Sequence[int], output: Sequence[int]) -> Tensor:
    """(T,) log-probability of each token of an output, given the source and the tokens before."""
    device = model.output_weight.device
    tokens, shifted = torch.tensor([source], device=device), torch.tensor([[BOS, *output[:-1]]], device=device)
    log_probabilities = model.project(model(tokens, tokens != PAD, shifted)).log_softmax(dim=-1)[0]
    return log_probabilities.gather(1, torch.tensor(output, device=device)[:, None])[:, 0]


def searched(model: StepModel, sources: Rows, settings: Search, prefixes: Rows | None = None) -> list[list[Finished]]:
    """The outputs of our own search, in one batch."""
    source = padded(sources)
    return beam_search(model, source, source != PAD, settings, None if prefixes is None else padded(prefixes))


def made_up_pairs(count: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Sources of 1 to 9 words; the target is the source backwards, a word in eight left out and one in eight twice. End tokens included."""
    draw = random.Random(seed)
    for _ in range(count):
        words = draw.choices(_WORDS, k=draw.randint(1, 9))
        target = [word for word in reversed(words) for _ in range(draw.choice(_TIMES))]
        yield [*words, EOS], [*(target or words[:1]), EOS]


class WordsOnly(Transformer):
    """Gives PAD, UNK and BOS no probability, as CTranslate2 does; ours keeps them out of outputs and takes nothing from their share."""

    def project(self, x: Tensor) -> Tensor:
        logits = super().project(x)
        # No list of columns: a copy to a GPU cannot be captured.
        return torch.cat((torch.full_like(logits[..., PAD : BOS + 1], -torch.inf), logits[..., BOS + 1 :]), dim=-1)


def learnt(updates: int) -> WordsOnly:
    """A small model after some updates on made-up pairs: its outputs end, depend on the source, and have close rivals of other lengths."""
    torch.manual_seed(1)
    model = WordsOnly(TransformerSize(layers=2, d_model=32, d_ff=64, heads=4, d_k=8, d_v=8, dropout=0.0), VOCAB)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for update in range(updates):
        sources, targets = map(padded, zip(*made_up_pairs(16, seed=update), strict=True))
        shifted = functional.pad(targets[:, :-1], (1, 0), value=BOS)
        logits = model.project(model(sources, sources != PAD, shifted))
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def padded(rows: Rows) -> Tensor:
    """Return rows of token ids, padded on the right: (rows, longest)."""
    return torch.from_numpy(subword.padded(rows))
