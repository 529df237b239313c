import pytest

from transformer_core.evaluation.frequency import count_words, f1_by_frequency, without_punctuation
from transformer_core.evaluation.metrics import GroupScore


def test_words_are_scored_by_their_occurrences_in_the_training() -> None:
    training = ["Der Hund, der Hund.", "der Hund der"] * 2
    # "der" occurs 6 times, "Hund" 6, "Der" 2, "Katze" never.
    groups = f1_by_frequency(["Der Hund der Katze.", "der der der"], ["Der Hund der Frau", "der Hund"], training)
    # Bin 0: "Katze" and "Frau"; bin 2-4: "Der"; bin 5-9: found 5 (Hund, der; der three times), wanted 4, matched 3.
    assert groups == [GroupScore("0", 1, 0.0), GroupScore("2-4", 1, 100.0), GroupScore("5-9", 4, pytest.approx(200 * 3 / 9))]


@pytest.mark.parametrize(
    ("times", "label"),
    [(0, "0"), (1, "1"), (2, "2-4"), (4, "2-4"), (5, "5-9"), (10, "10-99"), (99, "10-99"), (100, "100-999"), (1000, "1,000+")],
)
def test_a_bin_begins_at_its_least_number_of_occurrences(times: int, label: str) -> None:
    groups = f1_by_frequency(["ein ein"], ["ein ein"], iter(["ein"] * times))
    assert groups == [GroupScore(label, 2, 100.0)]


def test_words_are_compared_without_punctuation_around_them() -> None:
    assert [without_punctuation(word) for word in ("Hund.", "„Hund“", "AT&T", "...", "")] == ["Hund", "Hund", "AT&T", "...", ""]
    assert without_punctuation("\N{RIGHT-TO-LEFT MARK}Hund\N{ZERO WIDTH NO-BREAK SPACE}.") == "Hund"
    assert count_words(["Ja, ja! Nein", "(Ja)"], {"Ja", "ja"}) == {"Ja": 2, "ja": 1}


@pytest.mark.parametrize("word", ["की", "বাংলা", "தமிழ்", "e\N{COMBINING ACUTE ACCENT}", "$5", "5€", "C++", "-5", "\N{MINUS SIGN}5"])
def test_vowel_signs_symbols_and_the_sign_of_a_number_are_parts_of_a_word(word: str) -> None:
    assert [without_punctuation(text) for text in (word, f"({word})", f"„{word}“,")] == [word] * 3


def test_a_hyphen_that_is_no_sign_is_punctuation() -> None:
    assert [without_punctuation(word) for word in ("-Hund-", "--5", "5-", "-", "।")] == ["Hund", "-5", "5", "-", "।"]


def test_text_without_spaces_has_no_words_to_count() -> None:
    assert f1_by_frequency(["一只狗在草地上奔跑、一个孩子看着它。"], ["一只 猫在草地上奔跑、一个孩子看着它。"], []) == []


def test_lists_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        f1_by_frequency(["a b"], ["a b", "c"], [])
