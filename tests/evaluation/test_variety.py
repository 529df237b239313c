"""Outputs that are the same again and again."""

import pytest

from transformer_core.evaluation.metrics import score
from transformer_core.evaluation.variety import collapse, in_words, variety

REFERENCES = [f"Satz {number} ist ein anderer" for number in range(20)]


def test_shares_of_outputs_are_counted_beside_those_of_the_references() -> None:
    outputs = ["das ist ein Hund das ist ein Hund", "a a a a", "eins zwei drei", "eins zwei drei", "", "ein Hund"]
    references = [*REFERENCES[:5], "so ist es und so ist es"]
    assert variety(outputs, references) == pytest.approx(
        {
            "commonest": 100 * 2 / 6, "distinct": 100 * 5 / 6, "repeating": 100 * 2 / 6,
            "reference_commonest": 100 / 6, "reference_distinct": 100, "reference_repeating": 100 / 6,
        }
    )  # fmt: skip


def test_characters_are_the_words_of_text_without_spaces() -> None:
    assert variety(["我们明天去我们明天去"], ["我们明天去公园散步。"])["repeating"] == 100


@pytest.mark.parametrize(
    ("outputs", "collapsed"),
    [
        (REFERENCES, False),
        ([*REFERENCES[:18], "ein", "ein"], True),
        ([REFERENCES[number % 10] for number in range(20)], True),
        ([*REFERENCES[:17], *(f"{number} ein Hund und ein Hund und" for number in range(3))], True),
    ],
    ids=["as varied as the references", "one text too often", "few distinct", "phrases repeated"],
)
def test_outputs_much_less_varied_than_the_references_are_warned_of(outputs: list[str], collapsed: bool) -> None:
    parts = score(outputs, REFERENCES, "de").parts
    assert bool(collapse(parts)) == collapsed
    assert in_words(parts) in collapse(parts) or not collapsed


def test_scores_of_an_older_version_or_another_task_say_nothing_of_it() -> None:
    assert in_words({"bleu": 20.0}) == collapse({"bleu": 20.0}) == ""
