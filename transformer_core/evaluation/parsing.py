"""Scores of parses by labelled brackets (brackets.py) over a test set and groups of it, and the comparison of two parsers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.evaluation.brackets import Brackets, compare_outputs, total
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
    compared = compare_outputs(outputs, golds)
    if not compared:
        raise ValueError("no sentence")
    counts = [found for found, _ in compared]
    brackets, (low, high) = total(counts), _interval(counts)
    return ParsingScores(
        precision=brackets.precision,
        recall=brackets.recall,
        f1=brackets.f1,
        f1_low=low,
        f1_high=high,
        exact_match=100 * brackets.exact / len(compared),
        malformed=100 * sum(found.malformed for _, found in compared) / len(compared),
        lines=len(compared),
        signature=SIGNATURE,
    )


def sentence_f1(outputs: Sequence[str], golds: Sequence[str]) -> list[float]:
    """Return F1 of each sentence, in percent; 100 where neither tree has a bracket that counts, as in a sentence of one word."""
    return [100.0 if counts.exact else counts.f1 for counts, _ in compare_outputs(outputs, golds)]


def f1_by_group(groups: Mapping[str, Sequence[int]], outputs: Sequence[str], golds: Sequence[str]) -> list[GroupScore]:
    """Return F1 over groups of sentences; `groups` has the indices of sentences by label."""
    counts = [counts for counts, _ in compare_outputs(outputs, golds)]
    return [GroupScore(label, len(indices), total(counts[index] for index in indices).f1) for label, indices in groups.items()]


def compare_parsers(baseline: Sequence[str], candidate: Sequence[str], golds: Sequence[str]) -> Comparison:
    """Compare F1 of two parsers' outputs for the same sentences.

    The p-value is by approximate randomisation (Noreen 1989): the share of trials in which swapping the two outputs of random sentences
    gives a difference at least as large.

    Raises:
        ValueError: the three differ in length or are empty.
    """
    if not len(baseline) == len(candidate) == len(golds) > 0:
        raise ValueError(f"{len(baseline)} and {len(candidate)} outputs for {len(golds)} gold trees")
    first, second = (_counts([counts for counts, _ in compare_outputs(outputs, golds)]) for outputs in (baseline, candidate))
    difference = float(_f1(second.sum(0)) - _f1(first.sum(0)))
    gains, random = second - first, np.random.default_rng(SEED)
    moved = np.array([gains[random.random(len(golds)) < 0.5].sum(0) for _ in range(RESAMPLES)])
    differences = _f1(second.sum(0) - moved) - _f1(first.sum(0) + moved)
    # The tolerance absorbs rounding, so that equal differences compare as equal.
    extreme = int((np.abs(differences) >= abs(difference) - 1e-9).sum())
    return Comparison(
        metric="F1",
        baseline=float(_f1(first.sum(0))),
        candidate=float(_f1(second.sum(0))),
        difference=difference,
        p_value=(extreme + 1) / (RESAMPLES + 1) if difference else 1.0,
        signature=f"{SIGNATURE}|ar:{RESAMPLES}|seed:{SEED}",
    )


def _interval(counts: Sequence[Brackets]) -> tuple[float, float]:
    """Return the ends of F1's 95% percentile interval over resampled sentences."""
    rows, random = _counts(counts), np.random.default_rng(SEED)
    # One resample at a time: all of a large test set together need gigabytes.
    drawn = np.array([rows[random.integers(len(rows), size=len(rows))].sum(0) for _ in range(RESAMPLES)])
    low, high = np.quantile(_f1(drawn), ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2))
    return float(low), float(high)


def _counts(counts: Sequence[Brackets]) -> NDArray[np.int64]:
    """Return the counts as an array (sentences, 3): brackets of the gold tree, of the parser's tree, and in both."""
    return np.array(counts, np.int64)[:, :3]


def _f1(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return F1 in percent of (..., 3) counts; 0 for counts without a bracket."""
    gold, found, matched = np.moveaxis(counts, -1, 0)
    f1: NDArray[np.float64] = 200 * matched / np.maximum(gold + found, 1)
    return f1
