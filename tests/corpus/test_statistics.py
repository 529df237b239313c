"""What a corpus is like, told before anything is trained on it."""

import numpy as np
import pytest

from transformer_core.corpus.statistics import describe
from transformer_core.corpus.text import Pair


def text(pairs: int, seed: int, words: int = 6, first: int = 0) -> list[Pair[str]]:
    """Pairs of sentences of this many words, drawn from 200 on each side; the rarer ones are not in every text."""
    drawn = np.random.default_rng(seed).geometric(0.02, (pairs, 2, words)).clip(1, 200) + first
    return [Pair(*(" ".join(f"word{number}" for number in side) for side in pair)) for pair in drawn.tolist()]


def test_the_pairs_that_cleaning_will_drop_are_counted_by_rule() -> None:
    kept, valid = text(50, 1), text(5, 2)
    again = [kept[0], Pair(f" {kept[1].source}", kept[1].target)]
    train = [*kept, Pair("", "empty"), Pair("copy", "copy"), Pair(valid[0].source.upper(), "new"), *again]
    line, nearest, further, _ = describe(train, {"valid": valid})
    assert "50 of 55 pairs looked at are left (1 empty, 1 copies, 1 also in valid or test, 2 duplicates); 6 and 6 words" in line
    assert "captions (part of Multi30k), 2,900 pairs, 11 words a sentence, each word 10.3 times: 20.9 BLEU" in nearest
    assert "a start from a model of another pair" in further
    assert next(describe([Pair("copy", "copy")], {})).startswith("train: 0 of 1 pairs looked at are left (0 empty, 1 copies")


@pytest.mark.parametrize(
    ("valid", "other"),
    [(text(100, 2), False), (text(100, 2, words=7), False), (text(100, 2, first=150), True), (text(100, 2, words=10), True)],
    ids=["same", "a little longer", "other words", "much longer"],
)
def test_a_split_of_another_domain_than_train_is_named(valid: list[Pair[str]], other: bool) -> None:
    assert len([line for line in describe(text(1000, 1), {"valid": valid}) if "another domain" in line]) == other


def test_text_without_spaces_is_counted_by_its_characters() -> None:
    pairs = [Pair(f"我们明天去公园散步{sign}", "we take a walk") for sign in "甲乙丙丁戊己庚辛壬癸"]
    line, *_ = describe(pairs, {})
    assert "; 10 and 4 words a sentence (median), each word 5.3 and 10.0 times" in line  # 100 of 9 + 10 characters.
