"""Scores of parses by labelled brackets (brackets.py) over a test set and groups of it, and the comparison of two parsers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.evaluation.brackets import bracket_counts, f1
from transformer_core.evaluation.metrics import GroupScore
from transformer_core.evaluation.significance import RESAMPLES, SEED, Comparison

SIGNATURE = "F1|brackets:EVALB/COLLINS.prm|tags:gold|outputs:repaired"
_CONFIDENCE = 0.95


class ParsingScores(NamedTuple):
    """Labelled precision, recall and F1 of all brackets of a test set, in percent.

    Attributes:
        f1_low: lower end of F1's 95% bootstrap interval over sentences; `f1_high` is the upper end.
        exact_match: share of sentences without a difference, in percent.
        malformed: share of outputs that had to be repaired into a tree (`trees.repaired`), in percent.
    """

    precision: float
    recall: float
    f1: float
    f1_low: float
    f1_high: float
    exact_match: float
    malformed: float
    lines: int
    signature: str


def score(outputs: Sequence[str], golds: Sequence[str]) -> ParsingScores:
    """Score a model's outputs (symbols) against bracketed gold trees, line by line.

    Raises:
        ValueError: the two differ in length or are empty, or a gold tree is malformed.
    """
    counts = bracket_counts(outputs, golds)
    if not len(counts):
        raise ValueError("no sentence")
    total, (low, high) = counts.sum(0), _interval(counts)
    gold, found, matched, equal, malformed = total.tolist()
    return ParsingScores(
        precision=100 * matched / max(found, 1),
        recall=100 * matched / max(gold, 1),
        f1=float(f1(total)),
        f1_low=low,
        f1_high=high,
        exact_match=100 * equal / len(counts),
        malformed=100 * malformed / len(counts),
        lines=len(counts),
        signature=SIGNATURE,
    )


def sentence_f1(outputs: Sequence[str], golds: Sequence[str]) -> list[float]:
    """Return F1 of each sentence, in percent; 100 where neither tree has a bracket that counts, as in a sentence of one word."""
    counts = bracket_counts(outputs, golds)
    scores: list[float] = np.where(counts[:, 3], 100, f1(counts)).tolist()
    return scores


def f1_by_group(groups: Mapping[str, Sequence[int]], outputs: Sequence[str], golds: Sequence[str]) -> list[GroupScore]:
    """Return F1 over groups of sentences; `groups` has the indices of sentences by label."""
    counts = bracket_counts(outputs, golds)
    return [GroupScore(label, len(indices), float(f1(counts[list(indices)].sum(0)))) for label, indices in groups.items()]


def compare_parsers(baseline: Sequence[str], candidate: Sequence[str], golds: Sequence[str]) -> Comparison:
    """Compare F1 of two parsers' outputs for the same sentences.

    The p-value is by approximate randomisation (Noreen 1989): the share of trials in which swapping the two outputs of random sentences
    gives a difference at least as large.

    Raises:
        ValueError: the three differ in length or are empty.
    """
    if not len(baseline) == len(candidate) == len(golds) > 0:
        raise ValueError(f"{len(baseline)} and {len(candidate)} outputs for {len(golds)} gold trees")
    first, second = (bracket_counts(outputs, golds) for outputs in (baseline, candidate))
    difference = float(f1(second.sum(0)) - f1(first.sum(0)))
    gains, random = second - first, np.random.default_rng(SEED)
    moved = np.array([gains[random.random(len(golds)) < 0.5].sum(0) for _ in range(RESAMPLES)])
    differences = f1(second.sum(0) - moved) - f1(first.sum(0) + moved)
    # The tolerance absorbs rounding, so that equal differences compare as equal.
    extreme = int((np.abs(differences) >= abs(difference) - 1e-9).sum())
    return Comparison(
        metric="F1",
        baseline=float(f1(first.sum(0))),
        candidate=float(f1(second.sum(0))),
        difference=difference,
        p_value=(extreme + 1) / (RESAMPLES + 1) if difference else 1.0,
        signature=f"{SIGNATURE}|ar:{RESAMPLES}|seed:{SEED}",
    )


def _interval(counts: NDArray[np.int64]) -> tuple[float, float]:
    """Return the ends of F1's 95% percentile interval over resampled sentences."""
    random = np.random.default_rng(SEED)
    # One resample at a time: all of a large test set together need gigabytes.
    drawn = np.array([counts[random.integers(len(counts), size=len(counts))].sum(0) for _ in range(RESAMPLES)])
    low, high = np.quantile(f1(drawn), ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2))
    return float(low), float(high)
