"""The choice of sentences and groups of sentences that a report shows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_core.corpus.text import length_in_words
from transformer_core.evaluation.scoring import Scoring, untagged

BUCKET_WORDS = 5
LAST_BUCKET = 51


class GroupScore(NamedTuple):
    """Main score in percent over the sentences of a test set that share a label, and their number."""

    label: str
    size: int
    score: float


def scores_by_length(scoring: Scoring, sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]) -> list[GroupScore]:
    """Return the main score over groups of sentences by the length of the source, see `length_in_words`.

    The groups are 0, 1-5, 6-10, ... 51+, in this order; empty groups are left out.
    """
    import pandas as pd

    lengths = pd.Series(list(map(length_in_words, untagged(sources))), dtype=int)
    ends = range(0, LAST_BUCKET, BUCKET_WORDS)
    labels = ["0", *(f"{end + 1}-{end + BUCKET_WORDS}" for end in ends[:-1]), f"{LAST_BUCKET}+"]
    buckets = pd.cut(lengths, [-1, *ends, np.inf], labels=labels)
    groups = []
    for label, places in lengths.groupby(buckets, observed=True).groups.items():
        some, expected = ([texts[place] for place in places] for texts in (outputs, references))
        groups.append(GroupScore(str(label), len(places), scoring.main_score(some, expected, references)))
    return groups


def choose_examples(scores: Sequence[float], right: Sequence[bool], count: int) -> list[int]:
    """Choose `count` sentences by their scores, from the best to the worst at equal distances; all if there are fewer: their indices.

    Sentences that are exactly right show nothing, and are not chosen.
    """
    ranking = sorted((index for index, is_right in enumerate(right) if not is_right), key=lambda index: -scores[index])
    return [ranking[place] for place in np.linspace(0, len(ranking) - 1, min(count, len(ranking))).round().astype(int)]
