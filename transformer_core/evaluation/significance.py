"""Confidence interval of a score, and significance of the difference of two: sacreBLEU's bootstrap, 1,000 resamples, fixed seed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric, Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

RESAMPLES = 1000
SEED = 12345  # sacreBLEU's default.
SIGNIFICANT = 0.05
_SEED_VARIABLE = "SACREBLEU_SEED"


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
    """Compare BLEU (13a, cased) of two systems' translations of the same sentences.

    Raises:
        ValueError: the three differ in length or are empty.
    """
    return _comparisons({"BLEU": BLEU(force=True)}, baseline, candidate, references)[0]


def compare_scores(baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]) -> list[Comparison]:
    """Compare BLEU, chrF2 and TER, in this order; arguments and errors as in `compare_systems`."""
    return _comparisons({"BLEU": BLEU(force=True), "chrF2": CHRF(), "TER": TER()}, baseline, candidate, references)


def bleu_interval(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    """Return the ends of the 95% interval around the bootstrap's mean BLEU (13a, cased), in percent.

    They are limited to 0 and 100. For a single sentence both are its BLEU.
    """
    _, results = _tested({"BLEU": BLEU(force=True)}, [hypotheses], references)
    (result,) = results["BLEU"]
    assert result.mean is not None
    assert result.ci is not None
    low, high = (min(max(float(end), 0.0), 100.0) for end in (result.mean - result.ci, result.mean + result.ci))
    return low, high


def _comparisons(
    metrics: Mapping[str, Metric], baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]
) -> list[Comparison]:
    if not len(baseline) == len(candidate) == len(references) > 0:
        raise ValueError(f"{len(baseline)} and {len(candidate)} hypotheses for {len(references)} references")
    signatures, results = _tested(metrics, [baseline, candidate], references)
    comparisons = []
    for metric, (first, second) in results.items():
        assert second.p_value is not None
        difference = second.score - first.score
        p_value = second.p_value if difference and len(references) > 1 else 1.0
        comparisons.append(Comparison(metric, first.score, second.score, difference, p_value, str(signatures[metric])))
    return comparisons


def _tested(
    metrics: Mapping[str, Metric], systems: Sequence[Sequence[str]], references: Sequence[str]
) -> tuple[dict[str, Signature], dict[str, list[Result]]]:
    """Return each metric's signature, and its results for all systems, tested against the first system."""
    with _fixed_seed():
        test = PairedTest([(str(number), lines) for number, lines in enumerate(systems)], metrics, [references], "bs", RESAMPLES)
        signatures, table = test()
    return signatures, {metric: [result for result in table[metric] if isinstance(result, Result)] for metric in metrics}


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
