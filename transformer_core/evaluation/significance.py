"""Confidence intervals of scores by sacreBLEU's bootstrap, and two-sided p-values of the difference of two systems by randomisation.

Both begin with the same random numbers each time. Resamples and trials are drawn some at a time: all at once need gigabytes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import estimate_ci

from transformer_core.evaluation.scoring import Comparison, Score

RESAMPLES = 1000
TRIALS = 10_000  # sacreBLEU's default; a p-value of 0.05 has a standard error of 0.002.
SEED = 12345  # sacreBLEU's default.
TEST = f"paired approximate randomisation, two-sided, {TRIALS:,} trials"
_SWAPS_AT_ONCE = 1_000_000

# What a score is computed from: numbers that are summed over sentences, (sentences, numbers).
Counts = NDArray[Any]
# Returns the score, in percent, of each row of such sums.
ScoreOf = Callable[[Counts], NDArray[np.float64]]


def interval(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, float, float]:
    """Return a metric's score and the ends of the 95% interval around the bootstrap's mean; all metrics are of the same resamples.

    The resamples are those of `sacrebleu --confidence`. An interval is limited to the range from 0 to 100; that of TER, which may be above
    100, has no upper limit. For a single sentence both ends are its score. Raises `ValueError`: the two differ in length or are empty.
    """
    return interval_of(scores_of(metric), statistics_of(metric, hypotheses, references), np.inf if isinstance(metric, TER) else 100.0)


def interval_of(scores: ScoreOf, statistics: Counts, most: float = 100.0) -> tuple[float, float, float]:
    """Return the score of sentences with these counts and the ends of its interval, as `interval` does, at most `most`."""
    mean, half = estimate_ci(_resampled_scores(scores, statistics))
    low, high = (min(max(float(end), 0.0), most) for end in (mean - half, mean + half))
    return float(scores(statistics.sum(0, np.float64)[None])[0]), low, high


def compared(score: Score, first: Counts, second: Counts, scores: ScoreOf, signature: str) -> Comparison:
    """Compare two systems by the counts of their sentences; both are scored on the same resamples for the interval of the difference."""
    before, after = scores(np.stack([counts.sum(0, np.float64) for counts in (first, second)])).tolist()
    mean, half = estimate_ci(_resampled_scores(scores, second) - _resampled_scores(scores, first))
    return Comparison(score, before, after, p_value(first, second, scores), signature, float(mean - half), float(mean + half))


def p_value(first: Counts, second: Counts, scores: ScoreOf, trials: int = TRIALS) -> float:
    """Return the p-value of two systems' difference by paired approximate randomisation (Noreen 1989; Riezler and Maxwell 2005).

    It is the share of trials in which swapping the outputs of random sentences gives a difference at least as large, whatever its sign
    (two-sided). It is 1 if there is no difference or only one sentence.
    """
    random = np.random.default_rng(SEED)
    gains, totals = (second - first).astype(np.float64), [counts.sum(0, np.float64) for counts in (first, second)]

    def differences(swapped: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = swapped @ gains
        return np.abs(scores(totals[1] - moved) - scores(totals[0] + moved))

    # The tolerance absorbs rounding, so that equal differences compare as equal.
    least = differences(np.zeros((1, len(gains)))) - 1e-9
    at_once, extreme = max(_SWAPS_AT_ONCE // len(gains), 1), 0
    for start in range(0, trials, at_once):
        swapped = random.integers(2, size=(min(at_once, trials - start), len(gains)), dtype=np.int8)
        extreme += int((differences(swapped.astype(np.float64)) >= least).sum())
    return (extreme + 1) / (trials + 1)


def statistics_of(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.float32]:
    """Return the counts that a metric sums over lines, (lines, counts). Raises `ValueError`: the two differ in length or are empty."""
    if len(hypotheses) != len(references) or not references:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    return np.array(metric._extract_corpus_statistics(hypotheses, [references]), np.float32)


def scores_of(metric: Metric) -> ScoreOf:
    """Return the function from (sets, counts) to the metric's score of each set."""
    return lambda sums: np.array([metric._compute_score_from_stats(counts).score for counts in sums.tolist()])


def _resampled_scores(scores: ScoreOf, statistics: Counts) -> NDArray[np.float64]:
    """Return the score of each resample, (resamples,); the same resamples for all statistics of one number of lines."""
    random, lines = np.random.default_rng(SEED), len(statistics)
    return scores(np.stack([statistics[random.choice(lines, size=lines)].sum(0) for _ in range(RESAMPLES)]))
