import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_core.evaluation.comparison import SHOWN, scores_table, sentences_text, side_by_side
from transformer_core.evaluation.metrics import sentence_chrf
from transformer_core.evaluation.parsing import sentence_f1

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def test_the_sentences_that_differ_most_come_first_each_way() -> None:
    a = [ALPHABET[:length] for length in (26, 26, 5, 20, 9)]
    b = [ALPHABET[:length] for length in (26, 4, 26, 15, 10)]
    compared = side_by_side(a, b, [ALPHABET] * 5)
    assert [sentence.line for sentence in compared.gains] == [3, 5]
    assert [sentence.line for sentence in compared.losses] == [2, 4]
    assert (compared.gains[0].a, compared.gains[0].b, compared.gains[0].source) == (a[2], b[2], None)


@given(st.lists(st.tuples(st.integers(0, 26), st.integers(0, 26)), min_size=1, max_size=20))
def test_no_sentence_stands_on_both_sides_and_none_that_is_missing_differs_more(lengths: list[tuple[int, int]]) -> None:
    a, b = ([ALPHABET[: pair[side]] for pair in lengths] for side in (0, 1))
    references = [ALPHABET] * len(lengths)
    compared = side_by_side(a, b, references)
    for sentences, better, worse in ((compared.gains, b, a), (compared.losses, a, b)):
        differences = [up - down for up, down in zip(sentence_chrf(better, references), sentence_chrf(worse, references), strict=True)]
        wanted = sorted((one for one in differences if one > 0), reverse=True)[:SHOWN]
        assert [differences[sentence.line - 1] for sentence in sentences] == wanted


def test_a_significant_difference_is_marked_and_few_lines_are_warned_of() -> None:
    compared = side_by_side(["ein Hund läuft weg"] * 40, ["nichts"] * 40, ["ein Hund läuft weg"] * 40)
    rows = scores_table(compared).split("\n")
    assert rows[0].split() == ["40", "lines", "A", "B", "B", "-", "A", "p-value"]
    assert rows[1].split() == ["BLEU", "100.00", "0.00", "-100.00", "0.0010", "*"]
    assert rows[5] == "With fewer than 100 lines a p-value says little."
    same = scores_table(side_by_side(["ein Hund"] * 100, ["ein Hund"] * 100, ["ein Hund"] * 100))
    assert "*" not in same.split("\n")[1]
    assert "fewer than" not in same


def test_systems_that_agree_have_no_sentence_to_show() -> None:
    text = sentences_text(side_by_side(["ein Hund"], ["ein Hund"], ["eine Katze"]))
    assert text == "B better than A by most chrF2: no sentence\n\nA better than B by most chrF2: no sentence"


def test_parsers_are_compared_by_f1_and_their_outputs_shown_as_trees() -> None:
    gold = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
    right, flat = "(S (NP XX XX )NP (VP XX )VP )S", "(S XX XX XX )S"
    compared = side_by_side([flat] * 3, [flat, right, flat], [gold] * 3, trees=True)
    (f1,) = compared.scores
    assert (f1.metric, f1.baseline, f1.candidate) == ("F1", 50.0, pytest.approx(200 * 5 / 14))
    (gain,) = compared.gains
    assert (gain.line, gain.score_a, gain.score_b, gain.b) == (2, 50.0, 100.0, gold)
    assert "* p < 0.05 by approximate randomisation, 1,000 trials: more than chance." in scores_table(compared)
    assert "B better than A by most F1:" in sentences_text(compared)


def test_a_parsers_trees_in_brackets_are_read_as_its_symbols() -> None:
    gold = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
    right, flat = "(S (NP XX XX )NP (VP XX )VP )S", "(S XX XX XX )S"
    trees = ["( (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ barks))))", "(S (DT The) (NN dog) (VBZ barks))", ""]
    compared = side_by_side([flat] * 3, trees, [gold] * 3, trees=True)
    assert compared == side_by_side([flat] * 3, [right, flat, ""], [gold] * 3, trees=True)
    assert compared.gains[0].score_b == 100.0


def test_a_sentence_without_a_bracket_that_counts_is_right_if_its_tree_is() -> None:
    assert sentence_f1(["(TOP XX )TOP", "(NP XX )NP"], ["(TOP (UH Yes))"] * 2) == [100.0, 0.0]
