"""transformer-core score: its lines and its last line."""

import math
import re

import pytest

from tests.cli.conftest import Call, write
from transformer_core.corpus.tokens.subword import Subword

SOURCES = ["the dog sees a cat", "a cat sees the house", "the house"]
TARGETS = ["der Hund sieht eine Katze", "", "das Haus"]


@pytest.fixture(autouse=True)
def pairs(call: Call) -> None:  # noqa: ARG001  # In the folder that it moves to.
    write("a.en", SOURCES)
    write("a.de", TARGETS)


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.split("\n")[:-1]]


@pytest.mark.parametrize("architecture", ["transformer", "recurrent", "convolutional"])
def test_each_pair_has_its_log_probability_and_tokens_and_all_have_a_perplexity(architecture: str, call: Call) -> None:
    done = call("score", "--model", architecture, "a.en", "a.de")
    assert done.code == 0
    found = [(float(log_probability), int(tokens)) for log_probability, tokens in rows(done.out)]
    assert len(found) == 3
    assert all(log_probability < 0 for log_probability, _ in found)
    assert found[1][1] == 1  # The end token.
    total, tokens = map(sum, zip(*found, strict=True))
    said = re.fullmatch(r"perplexity ([0-9.]+), (\d+) tokens, 3 lines\n", done.err)
    assert said is not None
    assert int(said[2]) == tokens
    assert float(said[1]) == pytest.approx(math.exp(-total / tokens), rel=1e-4)


def test_tokens_are_pieces_with_log_probabilities_that_add_up(call: Call) -> None:
    done = call("score", "--model", "transformer", "--tokens", "a.en", "a.de")
    for (log_probability, tokens, column), target in zip(rows(done.out), TARGETS, strict=True):
        words = column.split(" ")
        pieces, found = words[::2], [float(word) for word in words[1::2]]
        assert "".join(pieces) == "".join(f"▁{word}" for word in target.split()) + "</s>"
        assert len(found) == int(tokens)
        assert sum(found) == pytest.approx(float(log_probability), abs=1e-4 * (len(found) + 1))


def test_lines_without_a_source_are_impossible_or_certain_and_left_out_of_the_perplexity(call: Call) -> None:
    plain = call("score", "--model", "transformer", "a.en", "a.de")
    write("b.en", [*SOURCES, "", "  "])
    write("b.de", [*TARGETS, "das Haus", ""])
    done = call("score", "--model", "transformer", "--tokens", "b.en", "b.de")
    assert [row[0] for row in rows(done.out)[3:]] == ["-inf", "0.0000"]
    assert rows(done.out)[4][1:] == ["1", "</s> 0.0000"]
    assert done.err == plain.err.replace("3 lines\n", "3 lines; 2 with an empty source left out\n")


def test_a_piece_with_a_line_feed_stays_in_its_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which only somebody else's vocabulary has."""
    monkeypatch.setattr(Subword, "pieces", ["up\ndown"] * 40)
    assert call("score", "--model", "transformer", "--tokens", "a.en", "a.de").out.count("\n") == 3
