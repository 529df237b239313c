"""Outputs that are the same again and again."""

import pytest

from transformer_core.evaluation.metrics import score
from transformer_core.evaluation.variety import collapse, in_words, variety

REFERENCES = [f"Satz {number} ist ein anderer" for number in range(20)]


def test_shares_of_outputs_are_counted_beside_those_of_the_references() -> None:
    outputs = ["das ist ein Hund das ist ein Hund", "我们明天去我们明天去", "eins zwei drei", "eins zwei drei", ""]
    found = variety(outputs, [*REFERENCES[:4], "so ist es und so ist es"])
    assert list(found.values()) == [40, 80, 40, 20, 100, 20]
    assert "40.0% are the commonest text, 80.0% distinct (references 100.0%), 40.0% have" in in_words(found | {"length_ratio": 1.0})
    assert in_words({"bleu": 20.0}) == collapse({"bleu": 20.0}) == ""  # Scores of an older version or another task.


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
    assert bool(collapse(score(outputs, REFERENCES, "de").parts)) == collapsed
