import pytest

from transformer_core.evaluation.comparison import scores_table, sentences_text, side_by_side
from transformer_core.evaluation.parsing import sentence_f1

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
GOLD = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)))"
RIGHT, FLAT = "(S (NP XX XX )NP (VP XX )VP )S", "(S XX XX XX )S"


def test_the_sentences_that_differ_most_come_first_each_way() -> None:
    lengths = [(10, 10 + gain) for gain in (3, 9, 1, 7, 5, 2, 8, 0)] + [(10 + loss, 10) for loss in (4, 6, 1, 2, 9, 3)]
    a, b = ([ALPHABET[: pair[side]] for pair in lengths] for side in (0, 1))
    compared = side_by_side(a, b, [ALPHABET] * len(lengths))
    assert [sentence.line for sentence in compared.gains] == [2, 7, 4, 5, 1]
    assert [sentence.line for sentence in compared.losses] == [13, 10, 9, 14, 12]
    assert (compared.gains[0].a, compared.gains[0].b, compared.gains[0].source) == (a[1], b[1], None)
    few = side_by_side(a[5:8], b[5:8], [ALPHABET] * 3)  # The last two are alike.
    assert ([sentence.line for sentence in few.gains], few.losses) == ([2, 1], [])


def test_a_significant_difference_is_marked_and_few_lines_are_warned_of() -> None:
    compared = side_by_side(["ein Hund läuft weg"] * 40, ["nichts"] * 40, ["ein Hund läuft weg"] * 40)
    rows = scores_table(compared).split("\n")
    assert rows[0].split() == ["40", "lines", "A", "B", "B", "-", "A", "p-value"]
    assert rows[1].split() == ["BLEU", "100.00", "0.00", "-100.00", "0.0010", "*"]
    assert rows[5] == "With fewer than 100 lines a p-value says little."
    same = scores_table(side_by_side(["ein Hund"] * 100, ["ein Hund"] * 100, ["ein Hund"] * 100))
    assert "*" not in same.split("\n")[1]
    assert "fewer than" not in same


def test_control_characters_of_a_text_do_not_reach_the_terminal() -> None:
    text = sentences_text(side_by_side(["ein\r\x1b[31mHund\x9f"], ["eine\u00a0Katze 猫"], ["eine\u00a0Katze 猫"], ["a\tcat\x00"]))
    shown = dict(line.split(maxsplit=1) for line in text.split("\n") if line.startswith("  "))
    assert shown == {"source": r"a\tcat\x00", "reference": "eine\u00a0Katze 猫", "A": r"ein\r\x1b[31mHund\x9f", "B": "eine\u00a0Katze 猫"}


def test_systems_that_agree_have_no_sentence_to_show() -> None:
    text = sentences_text(side_by_side(["ein Hund"], ["ein Hund"], ["eine Katze"]))
    assert text == "Largest gains of B over A by chrF2: none\n\nLargest gains of A over B by chrF2: none"


def test_parsers_are_compared_by_f1_and_their_outputs_shown_as_trees() -> None:
    compared = side_by_side([FLAT] * 3, [FLAT, RIGHT, FLAT], [GOLD] * 3, trees=True)
    (f1,) = compared.scores
    assert (f1.metric, f1.baseline, f1.candidate) == ("F1", 50.0, pytest.approx(200 * 5 / 14))
    (gain,) = compared.gains
    assert (gain.line, gain.score_a, gain.score_b, gain.b) == (2, 50.0, 100.0, GOLD)
    assert "* p < 0.05 by approximate randomisation, 1,000 trials: more than chance." in scores_table(compared)
    assert "Largest gains of B over A by F1:" in sentences_text(compared)


def test_a_parsers_trees_in_brackets_are_read_as_its_symbols() -> None:
    trees = ["( (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ barks))))", "(S (DT The) (NN dog) (VBZ barks))", ""]
    compared = side_by_side([FLAT] * 3, trees, [GOLD] * 3, trees=True)
    assert compared == side_by_side([FLAT] * 3, [RIGHT, FLAT, ""], [GOLD] * 3, trees=True)
    assert compared.gains[0].score_b == 100.0


def test_a_sentence_without_a_bracket_that_counts_is_right_if_its_tree_is() -> None:
    assert sentence_f1(["(TOP XX )TOP", "(NP XX )NP"], ["(TOP (UH Yes))"] * 2) == [100.0, 0.0]
