from transformer_core.evaluation.comparison import comparison_text, side_by_side
from transformer_core.evaluation.metrics import SCORING

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def test_the_sentences_that_differ_most_come_first_each_way() -> None:
    lengths = [(10, 10 + gain) for gain in (3, 9, 1, 7, 5, 2, 8, 0)] + [(10 + loss, 10) for loss in (4, 6, 1, 2, 9, 3)]
    a, b = ([ALPHABET[: pair[side]] for pair in lengths] for side in (0, 1))
    compared = side_by_side(SCORING, a, b, [ALPHABET] * len(lengths))
    assert [sentence.line for sentence in compared.gains] == [2, 7, 4, 5, 1]
    assert [sentence.line for sentence in compared.losses] == [13, 10, 9, 14, 12]
    assert (compared.gains[0].a, compared.gains[0].b, compared.gains[0].source) == (a[1], b[1], None)
    few = side_by_side(SCORING, a[5:8], b[5:8], [ALPHABET] * 3)  # The last two are alike.
    assert ([sentence.line for sentence in few.gains], few.losses) == ([2, 1], [])


def test_a_significant_difference_is_marked_and_few_lines_are_warned_of() -> None:
    compared = side_by_side(SCORING, ["ein Hund läuft weg"] * 40, ["nichts"] * 40, ["ein Hund läuft weg"] * 40)
    rows = comparison_text(compared).split("\n")
    assert rows[0].split() == ["40", "lines", "A", "B", "B", "-", "A", "p-value"]
    assert rows[1].split() == ["BLEU", "100.00", "0.00", "-100.00", "0.0001", "*"]
    assert rows[5:7] == ["A lower TER is better.", "With fewer than 100 lines a p-value says little."]
    same = comparison_text(side_by_side(SCORING, ["ein Hund"] * 100, ["ein Hund"] * 100, ["ein Hund"] * 100))
    assert "*" not in same.split("\n")[1]
    assert "fewer than" not in same
    assert same.endswith("\n\nLargest gains of B over A by chrF2: none\n\nLargest gains of A over B by chrF2: none")


def test_control_characters_of_a_text_do_not_reach_the_terminal() -> None:
    text = comparison_text(side_by_side(SCORING, ["ein\r\x1b[31mHund\x9f"], ["eine\u00a0Katze 猫"], ["eine\u00a0Katze 猫"], ["a\tcat\x00"]))
    shown = dict(line.split(maxsplit=1) for line in text.split("\n") if line.startswith("  "))
    assert shown == {"source": r"a\tcat\x00", "reference": "eine\u00a0Katze 猫", "A": r"ein\r\x1b[31mHund\x9f", "B": "eine\u00a0Katze 猫"}
