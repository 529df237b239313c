"""Confidence intervals of scores, and significance of the difference of two: sacreBLEU's bootstrap, 1,000 resamples, fixed seed.

The resamples are drawn one after the other, because sacreBLEU holds all at once: about 50 kB a line.
"""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import estimate_ci

from transformer_core.evaluation.scoring import Comparison, Score

RESAMPLES = 1000
SEED = 12345  # sacreBLEU's default.


def interval(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, float, float]:
    """Return a metric's score and the ends of the 95% interval around the bootstrap's mean; all metrics are of the same resamples.

    The resamples are those of `sacrebleu --confidence`. An interval is limited to the range from 0 to 100; that of TER, which
    may be above 100, has no upper limit. For a single sentence both ends are its score.

    Raises:
        ValueError: the two differ in length or are empty.
    """
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    statistics = _statistics(metric, hypotheses, references)
    mean, half = estimate_ci(_resampled_scores(metric, statistics))
    most = np.inf if isinstance(metric, TER) else 100.0
    low, high = (min(max(float(end), 0.0), most) for end in (mean - half, mean + half))
    return _score(metric, statistics), low, high


def compare(score: Score, metric: Metric, baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]) -> Comparison:
    """Compare two systems by a metric, with the p-value of a paired bootstrap.

    The p-value is 1 if there is no difference or only one sentence, where sacreBLEU would report 0.001.

    Raises:
        ValueError: the three differ in length or are empty.
    """
    if not len(baseline) == len(candidate) == len(references) > 0:
        raise ValueError(f"{len(baseline)} and {len(candidate)} hypotheses for {len(references)} references")
    first, second = (_statistics(metric, outputs, references) for outputs in (baseline, candidate))
    before, after = _score(metric, first), _score(metric, second)
    differences = np.abs(_resampled_scores(metric, second) - _resampled_scores(metric, first))
    p_value = 1.0
    if before != after and len(references) > 1:
        p_value = float((np.sum(differences - differences.mean() > abs(after - before)) + 1) / (RESAMPLES + 1))
    signature = metric.get_signature()
    signature.update("seed", str(SEED))
    signature.update("bs", RESAMPLES)
    return Comparison(score, before, after, p_value, str(signature))


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
