"""Sampling of translations from the model's distribution."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from transformer_core.corpus.tokens.subword import EOS, PAD
from transformer_core.decoding.hypotheses import Finished, Hypotheses, Limits, StepModel

# Number of samples of a sentence drawn at a time: attention's time is quadratic in the number of hypotheses of a sentence.
_TOGETHER = 16
_COLDEST = 1e-30  # Logits divided by less overflow float32.


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling.

    Attributes:
        samples: number of independent samples of each sentence.
        temperature: divisor of logits, above 0; below 1 favours likely tokens.
        top_k: number of likeliest tokens to draw from; 0 for all (Fan et al. 2018).
        top_p: draw only from the smallest set of likeliest tokens with at least this total probability; 1 for all (Holtzman et al. 2020).
        seed: seed of the random numbers, together with the source's tokens, so that samples of a sentence do not depend on its batch.
        max_extra: at least 1; an output, end token included, has at most this many tokens more than its source without the end token.
    """

    samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1
    max_extra: int = 50


@torch.inference_mode()
def sample(
    model: StepModel,
    source: Tensor,
    source_mask: Tensor,
    settings: Sampling,
    prefix: Tensor | None = None,
    most_positions: int | None = None,
) -> list[list[Finished]]:
    """Return `settings.samples` outputs of each sentence, the likeliest first; arguments as in `beam_search`.

    A sentence has fewer only if logits are not finite.

    Log-probabilities and scores are those of the model, without temperature, top_k and top_p.
    """
    limits = Limits.of(source_mask, settings.max_extra, prefix, most_positions)
    sentences = [row[mask].tolist() for row, mask in zip(source.numpy(force=True), source_mask.numpy(force=True), strict=True)]
    drawn: list[list[Finished]] = [[] for _ in sentences]
    for group in _uniform(settings, sentences, int(limits.max_length.max())):
        outputs = _Samples(limits, settings, group.to(source.device)).run(model, source, source_mask)
        drawn = [before + new for before, new in zip(drawn, outputs, strict=True)]
    return [sorted(outputs, key=lambda output: -output.score) for outputs in drawn]


def _uniform(settings: Sampling, sentences: list[list[int]], steps: int) -> Iterator[Tensor]:
    """Yield (B, K, steps) random numbers in [0, 1), for some samples at a time, that depend only on seed, sentence and sample."""
    digests = [blake2b(repr((settings.seed, tokens)).encode(), digest_size=16).digest() for tokens in sentences]
    generators = [np.random.default_rng(int.from_bytes(digest)) for digest in digests]
    for done in range(0, settings.samples, _TOGETHER):
        streams = [generator.spawn(min(_TOGETHER, settings.samples - done)) for generator in generators]  # Children are numbered.
        yield torch.from_numpy(np.stack([[stream.random(steps) for stream in samples] for samples in streams]))


class _Samples(Hypotheses):
    """One hypothesis per sample; a hypothesis that has ended continues with a log-probability of minus infinity."""

    def __init__(self, limits: Limits, settings: Sampling, numbers: Tensor) -> None:
        super().__init__(limits, numbers.shape[1])
        self._settings = settings
        self._numbers = numbers  # (B, K, steps)

    def extend(self, logits: Tensor) -> Tensor:
        """Extend each sample by the token drawn with its random number."""
        batch, samples = self._numbers.shape[:2]
        rows = torch.arange(len(logits), device=self.device).view(batch, -1).expand(-1, samples).flatten()
        forced = self.forced()
        only = None if forced is None else forced.repeat_interleave(samples)
        logit_of_forced = None if only is None else logits[rows, only]  # Before `log_normaliser` forbids UNK, which a prefix may have.
        normaliser, _ = self.log_normaliser(logits)
        token = self._drawn(logits, rows)
        logit = logits[rows, token]
        if only is not None and logit_of_forced is not None:
            token, logit = torch.where(only == PAD, token, only), torch.where(only == PAD, logit, logit_of_forced)
        log_probability = logit.to(normaliser.dtype) - normaliser[rows]
        live, token = self.live + log_probability.view(batch, samples), token.view(batch, samples)
        parents = torch.arange(samples, device=self.device).expand(batch, -1) if self.length else torch.zeros_like(token)
        ended = live.masked_fill(token != EOS, -torch.inf)
        self.finish(ended, ended, parents)
        self.advance(live.masked_fill(token == EOS, -torch.inf), parents, token)
        self.done |= (self.live == -torch.inf).all(dim=1)
        return parents

    def keep(self, places: Tensor) -> None:
        super().keep(places)
        self._numbers = self._numbers[places]

    def _drawn(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Draw a token per sample, (B*samples,), from the given rows of logits (R, V), by inverting the cumulative distribution."""
        settings = self._settings
        scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / max(settings.temperature, _COLDEST)
        tokens = torch.arange(scaled.shape[1], device=self.device).expand_as(scaled)
        if settings.top_k or settings.top_p < 1:
            scaled, tokens = scaled.topk(min(settings.top_k or scaled.shape[1], scaled.shape[1]), dim=1)
        probability = scaled.softmax(dim=1)
        cumulative = probability.cumsum(dim=1)
        # A token is a candidate if the total of those before it has not reached top_p.
        inside = cumulative - probability < max(settings.top_p, torch.finfo(cumulative.dtype).tiny)
        probability = probability.masked_fill(~inside, 0.0)
        cumulative = probability.cumsum(dim=1)
        total = cumulative[rows, -1:]
        number = self._numbers.index_select(2, self.at).flatten()[:, None].to(total.dtype) * total
        # A number that is rounded up to the total would select a token behind the last.
        number = torch.minimum(number, total.nextafter(torch.zeros_like(total)))
        place = (cumulative[rows] <= number).sum(dim=1)
        # Logits that are not finite leave no candidate. The sample's score is NaN then, whatever the token.
        return tokens[rows, place.clamp(max=tokens.shape[1] - 1)]
