from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_core.evaluation.examples import ALIKE, EXACT, QUANTILES, Example, GroupScore, choose_examples, scores_by_length
from transformer_core.evaluation.metrics import SCORING, score


def sizes_of(sources: list[str]) -> dict[str, int]:
    """The number of sentences in each group."""
    return {group.label: group.size for group in scores_by_length(SCORING, sources, sources, sources)}


def test_buckets_of_length_end_after_every_tenth_word_and_at_fifty() -> None:
    lengths = [200, 51, 50, 41, 20, 11, 10, 1, 0]
    sources = [" ".join(["word"] * length) for length in lengths]
    assert sizes_of(sources) == {"0": 1, "1-10": 2, "11-20": 2, "41-50": 2, "51+": 2}


def test_text_without_spaces_is_measured_in_characters() -> None:
    assert sizes_of(["一只狗在草地上奔跑、一个孩子看着它。", "一只 狗 在 草地 上 奔跑"]) == {"1-10": 1, "11-20": 1}


def test_bleu_of_a_bucket_is_that_of_its_sentences_alone() -> None:
    sources = ["short", "word " * 11, "short", "word " * 12]
    outputs, references = ["a b c d", "e f g h i", "j k l m", "n o p q"], ["a b c x", "e f g h z", "j k l m", "n o p q"]
    long = score(outputs[1::2], references[1::2], "de").values["bleu"]
    assert scores_by_length(SCORING, sources, outputs, references)[1] == GroupScore("11-20", 2, long)


def chosen_of(scores: Sequence[float], count: int) -> list[Example]:
    """The examples of sentences of which those with the full score are right."""
    return choose_examples(scores, [score == 100 for score in scores], count)


def test_examples_are_taken_at_the_quartiles() -> None:
    chosen = chosen_of([float(number) for number in range(100)], 10)
    assert [(example.rank, example.index) for example in chosen] == [
        ("best", 99), ("best", 98), ("upper quartile", 75), ("upper quartile", 74), ("median", 50), ("median", 49),
        ("lower quartile", 26), ("lower quartile", 25), ("worst", 0), ("worst", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        ([50.0, 99.0, 5.0, 70.0, 30.0, 90.0, 20.0], 3, [("best", 1), ("median", 0), ("worst", 2)]),
        ([100.0, 90.0, 80.0, 100.0], 2, [("best", 1), ("worst", 2)]),
        ([100.0, 90.0, 80.0, 100.0], 3, [("best", 1), ("worst", 2), (EXACT, 0)]),
        ([0.0, 100.0, 0.0, 0.0], 2, [(ALIKE, 0), (ALIKE, 2)]),
        ([0.0, 100.0], 2, [("best", 0), (EXACT, 1)]),
    ],
    ids=["few", "none is right", "others are too few", "one score", "one that is not right"],
)
def test_few_examples_are_the_best_the_middle_and_the_worst(scores: list[float], count: int, expected: list[tuple[str, int]]) -> None:
    assert [(example.rank, example.index) for example in chosen_of(scores, count)] == expected


@given(scores=st.lists(st.integers(0, 10), min_size=1, max_size=30), count=st.integers(1, 40))
def test_examples_are_different_sentences_in_order_of_their_ranks(scores: list[int], count: int) -> None:
    chosen = chosen_of([10.0 * score for score in scores], count)
    by_rank = {rank: [example.score for example in chosen if example.rank == rank] for rank in (*QUANTILES, ALIKE, EXACT)}
    exact, alike = by_rank.pop(EXACT), by_rank.pop(ALIKE)
    assert len({example.index for example in chosen}) == len(chosen) == min(count, len(scores))
    descending = [score for rank, of_rank in by_rank.items() for score in (reversed(of_rank) if rank == "worst" else of_rank)]
    assert descending == sorted(descending, reverse=True)
    assert max(map(len, by_rank.values())) - min(map(len, by_rank.values())) <= 1
    assert set(exact) <= {100.0}
    assert 100.0 not in descending
    assert not alike or (len(set(alike)) == 1 and alike[0] < 100.0 and not descending)
