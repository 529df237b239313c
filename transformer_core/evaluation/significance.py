"""Confidence intervals of scores, and significance of the difference of two: sacreBLEU's bootstrap, 1,000 resamples, fixed seed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result, estimate_ci

from transformer_core.evaluation.bleu import bleu_metric, ter_metric

RESAMPLES = 1000
SEED = 12345  # sacreBLEU's default.
SIGNIFICANT = 0.05
_SEED_VARIABLE = "SACREBLEU_SEED"


class ConfidenceInterval(NamedTuple):
    """A score and the ends of its 95% bootstrap interval, in percent."""

    score: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """A score of two systems on the same sentences.

    Attributes:
        metric: BLEU, chrF2, TER (lower is better) or F1.
        baseline: score of the first system, in percent.
        candidate: score of the second system, in percent.
        difference: candidate minus baseline.
        p_value: probability of such a difference by chance, by paired bootstrap, for F1 by approximate randomisation; 1 if there is no
            difference or only one sentence (sacreBLEU would report 0.001 there).
        signature: record of how the scores and the p-value were computed, by sacreBLEU or, for F1, by parsing.py.
    """

    metric: str
    baseline: float
    candidate: float
    difference: float
    p_value: float
    signature: str

    @property
    def significant(self) -> bool:
        """True if the p-value is below `SIGNIFICANT`."""
        return self.p_value < SIGNIFICANT


def compare_systems(baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]) -> Comparison:
    """Compare BLEU (`bleu_metric`) of two systems' translations of the same sentences.

    Raises:
        ValueError: the three differ in length or are empty.
    """
    return _comparisons({"BLEU": bleu_metric(references, force=True)}, baseline, candidate, references)[0]


def compare_scores(baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]) -> list[Comparison]:
    """Compare BLEU, chrF2 and TER, in this order; arguments and errors as in `compare_systems`."""
    metrics = {"BLEU": bleu_metric(references, force=True), "chrF2": CHRF(), "TER": ter_metric(references)}
    return _comparisons(metrics, baseline, candidate, references)


def intervals(metrics: Mapping[str, Metric], hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, ConfidenceInterval]:
    """Return each metric's score with the 95% interval around the bootstrap's mean; all metrics are of the same resamples.

    The resamples are those of `sacrebleu --confidence`. An interval is limited to the range from 0 to 100; that of TER, which
    may be above 100, has no upper limit. For a single sentence both ends are its score.

    Raises:
        ValueError: the two differ in length or are empty.
    """
    count = len(references)
    if len(hypotheses) != count or not count:
        raise ValueError(f"{len(hypotheses)} hypotheses for {count} references")
    drawn = np.random.default_rng(SEED).choice(count, size=(RESAMPLES, count), replace=True)
    # How often each resample has each sentence, (resamples, sentences): a product with it sums a resample's statistics.
    times = np.empty(drawn.shape, np.float32)
    for row, sample in enumerate(drawn):
        times[row] = np.bincount(sample, minlength=count)
    found = {}
    for name, metric in metrics.items():
        statistics = np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.float32)
        mean, half = estimate_ci(np.array([metric._compute_score_from_stats(sums).score for sums in (times @ statistics).tolist()]))
        most = np.inf if isinstance(metric, TER) else 100.0
        low, high = (min(max(float(end), 0.0), most) for end in (mean - half, mean + half))
        found[name] = ConfidenceInterval(float(metric._compute_score_from_stats(statistics.sum(0, np.float64).tolist()).score), low, high)
    return found


def _comparisons(
    metrics: Mapping[str, Metric], baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]
) -> list[Comparison]:
    if not len(baseline) == len(candidate) == len(references) > 0:
        raise ValueError(f"{len(baseline)} and {len(candidate)} hypotheses for {len(references)} references")
    with _fixed_seed():
        signatures, table = PairedTest([("baseline", baseline), ("candidate", candidate)], metrics, [references], "bs", RESAMPLES)()
    comparisons = []
    for metric in metrics:
        first, second = table[metric]
        assert isinstance(first, Result)
        assert isinstance(second, Result)
        assert second.p_value is not None
        difference = second.score - first.score
        p_value = second.p_value if difference and len(references) > 1 else 1.0
        comparisons.append(Comparison(metric, first.score, second.score, difference, p_value, str(signatures[metric])))
    return comparisons


@contextmanager
def _fixed_seed() -> Iterator[None]:
    """Set sacreBLEU's seed: it is read only from the environment, and a result must not depend on the caller's environment."""
    before = os.environ.get(_SEED_VARIABLE)
    os.environ[_SEED_VARIABLE] = str(SEED)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED_VARIABLE]
        else:
            os.environ[_SEED_VARIABLE] = before
