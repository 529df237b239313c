"""Confidence intervals of scores, and significance of the difference of two: sacreBLEU's bootstrap, 1,000 resamples, fixed seed.

The resamples are drawn one after the other, because sacreBLEU holds all at once: about 50 kB a line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import estimate_ci

from transformer_core.evaluation.bleu import NORMALISED, as_outputs, bleu_metric, has_ter, ter_metric

RESAMPLES = 1000
SEED = 12345  # sacreBLEU's default.
SIGNIFICANT = 0.05


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
    """Compare BLEU (`bleu_metric`) of two systems' translations of the same sentences; the references are normalised (`as_outputs`).

    Raises:
        ValueError: the three differ in length or are empty.
    """
    return _comparisons({"BLEU": bleu_metric(references, force=True)}, baseline, candidate, references)[0]


def compare_scores(baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]) -> list[Comparison]:
    """Compare BLEU, chrF2 and, unless a line is too long (`has_ter`), TER, in this order; arguments and errors as in `compare_systems`."""
    metrics: dict[str, Metric] = {"BLEU": bleu_metric(references, force=True), "chrF2": CHRF()}
    if has_ter(baseline, candidate, references):
        metrics["TER"] = ter_metric(references)
    return _comparisons(metrics, baseline, candidate, references)


def intervals(metrics: Mapping[str, Metric], hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, ConfidenceInterval]:
    """Return each metric's score with the 95% interval around the bootstrap's mean; all metrics are of the same resamples.

    The resamples are those of `sacrebleu --confidence`. An interval is limited to the range from 0 to 100; that of TER, which
    may be above 100, has no upper limit. For a single sentence both ends are its score.

    Raises:
        ValueError: the two differ in length or are empty.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    found = {}
    for name, metric in metrics.items():
        statistics = _statistics(metric, hypotheses, references)
        mean, half = estimate_ci(_resampled_scores(metric, statistics))
        most = np.inf if isinstance(metric, TER) else 100.0
        low, high = (min(max(float(end), 0.0), most) for end in (mean - half, mean + half))
        found[name] = ConfidenceInterval(_score(metric, statistics), low, high)
    return found


def _comparisons(
    metrics: Mapping[str, Metric], baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]
) -> list[Comparison]:
    if not len(baseline) == len(candidate) == len(references) > 0:
        raise ValueError(f"{len(baseline)} and {len(candidate)} hypotheses for {len(references)} references")
    references, changed = as_outputs(references)
    comparisons = []
    for name, metric in metrics.items():
        first, second = (_statistics(metric, outputs, references) for outputs in (baseline, candidate))
        score, other = _score(metric, first), _score(metric, second)
        differences = np.abs(_resampled_scores(metric, second) - _resampled_scores(metric, first))
        p_value = 1.0
        if score != other and len(references) > 1:
            p_value = float((np.sum(differences - differences.mean() > abs(other - score)) + 1) / (RESAMPLES + 1))
        signature = metric.get_signature()
        signature.update("seed", str(SEED))
        signature.update("bs", RESAMPLES)
        comparisons.append(Comparison(name, score, other, other - score, p_value, f"{signature}{NORMALISED if changed else ''}"))
    return comparisons


def _statistics(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return the counts that a metric sums over lines, (lines, counts)."""
    return np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.float32)


def _score(metric: Metric, statistics: np.ndarray) -> float:
    return float(metric._compute_score_from_stats(statistics.sum(0, np.float64).tolist()).score)


def _resampled_scores(metric: Metric, statistics: np.ndarray) -> np.ndarray:
    """Return the score of each resample, (resamples,); the same resamples for all statistics of one number of lines."""
    random, lines = np.random.default_rng(SEED), len(statistics)
    sums = (statistics[random.choice(lines, size=lines)].sum(0) for _ in range(RESAMPLES))
    return np.array([metric._compute_score_from_stats(counts.tolist()).score for counts in sums])
