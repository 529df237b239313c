"""The choice of sentences and groups of sentences that a report shows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_core.corpus.text import length_in_words
from transformer_core.evaluation.scoring import Scoring

# Ranks of examples, from high scores to low ones, and the order in which they get a sentence where there are fewer than five to choose.
QUANTILES = ("best", "upper quartile", "median", "lower quartile", "worst")
_FIRST_CHOSEN = ("best", "worst", "median", "upper quartile", "lower quartile")
# The ranks of examples that all have the same score, and of those with the full one.
ALIKE, EXACT = "alike", "exact"
BUCKET_WORDS = 10
LAST_BUCKET = 51


@dataclass(frozen=True)
class Example:
    """A sentence chosen as an example: its rank (in `QUANTILES`, `ALIKE` or `EXACT`), index in the test set, and own score in percent."""

    rank: str
    index: int
    score: float


@dataclass(frozen=True)
class GroupScore:
    """Main score in percent over the sentences of a test set that share a label, and their number."""

    label: str
    size: int
    score: float


def scores_by_length(scoring: Scoring, sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> list[GroupScore]:
    """Return the main score over groups of sentences by the length of the source, see `length_in_words`.

    The groups are 0, 1-10, 11-20, ... 51+, in this order; empty groups are left out.
    """
    import pandas as pd

    lengths = pd.Series(list(map(length_in_words, sources)), dtype=int)
    ends = range(0, LAST_BUCKET, BUCKET_WORDS)
    labels = ["0", *(f"{end + 1}-{end + BUCKET_WORDS}" for end in ends[:-1]), f"{LAST_BUCKET}+"]
    buckets = pd.cut(lengths, [-1, *ends, np.inf], labels=labels)
    groups = []
    for label, places in lengths.groupby(buckets, observed=True).groups.items():
        some, expected = ([texts[place] for place in places] for texts in (outputs, references))
        groups.append(GroupScore(str(label), len(places), scoring.main_score(some, expected, references)))
    return groups


def choose_examples(scores: Sequence[float], right: Sequence[bool], count: int) -> list[Example]:
    """Choose `count` sentences by their scores: a fifth each of the best, at the quartiles and of the worst (`QUANTILES`).

    Sentences that are exactly right show nothing: they are left out of the quantiles, and are chosen, as `EXACT`, only if there are
    fewer than `count` others. No sentence is chosen twice. If there are at most `count` sentences, all are chosen. Each rank is in
    descending order of the score, the worst in ascending order. If all others have the same score, their rank is `ALIKE`.
    """
    exact = [index for index, is_right in enumerate(right) if is_right]
    ranking = sorted((index for index, is_right in enumerate(right) if not is_right), key=lambda index: -scores[index])
    shown = min(count, len(ranking))
    chosen: dict[str, list[int]] = {}
    if len(ranking) > 1 and scores[ranking[0]] == scores[ranking[-1]]:
        chosen[ALIKE] = ranking[:shown]
    else:
        chosen |= _at_quantiles(ranking, shown)
    chosen[EXACT] = exact[: count - shown]
    return [Example(rank, index, scores[index]) for rank, indices in chosen.items() for index in indices]


def _at_quantiles(ranking: Sequence[int], shown: int) -> dict[str, list[int]]:
    """Return `shown` of the ranked indices, by rank."""
    sizes = {rank: shown // len(QUANTILES) + (place < shown % len(QUANTILES)) for place, rank in enumerate(_FIRST_CHOSEN)}
    chosen, before = {}, 0
    for place, rank in enumerate(QUANTILES):
        start = before + (len(ranking) - shown) * place // (len(QUANTILES) - 1)
        chosen[rank] = list(ranking[start : start + sizes[rank]])
        before += sizes[rank]
    chosen["worst"].reverse()
    return chosen
