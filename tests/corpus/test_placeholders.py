"""Placeholders stand for strings, which are put back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clone import ROOT
from transformer_core.corpus.placeholders import SYMBOLS, masked, restored, strings_in, with_symbols
from transformer_core.corpus.text import Pair

PROBES = [line.split("\t") for line in (ROOT / "benchmarks/probes.tsv").read_text(encoding="utf-8").splitlines()]
PARTS = st.sampled_from(["⟦2⟧", "<b>", "https://a.de/x?y=1.", "{name}", "%s", "😀", "a@b.de", "10:45", "3.5", "word", " ", "\\n", "**"])


@given(st.text() | st.lists(PARTS, max_size=9).map("".join))
def test_the_strings_of_any_text_are_put_back_and_a_symbol_that_the_model_has_invented_is_left_out(text: str) -> None:
    assert restored("a ⟦1⟧ b ⟦2⟧", ["x"]) == "a x b "
    strings = strings_in(text)
    assert len(strings) <= len(SYMBOLS)
    assert restored(masked(text, strings), [*strings, *SYMBOLS[len(strings) :]]) == text


@pytest.mark.parametrize(("strings", "source"), [probe[1:] for probe in PROBES])
def test_what_a_translation_must_have_becomes_a_placeholder(strings: str, source: str) -> None:
    found = strings_in(source)
    for string in strings.split("|"):
        assert string.partition(" ")[0] in " ".join(found)
        assert string not in masked(source, found)


def test_words_decimal_numbers_and_a_tag_at_the_beginning_stay() -> None:
    source = "<bt> It costs 3.50, 1,000 or 2.000 at 5 on the 20th; <bt> is no tag here."
    assert strings_in(source, {"<bt>"}) == []
    assert strings_in(source) == ["<bt>", "<bt>"]
    assert strings_in("⟦1⟧ is no tag", SYMBOLS) == ["⟦1⟧"]


@given(*[st.lists(PARTS | st.sampled_from(["Rome", "Rome19", "_Rome"]), max_size=9).map("".join)] * 2)
def test_both_sides_of_a_training_pair_get_the_same_symbols(source: str, target: str) -> None:
    (pair,) = with_symbols([Pair(source, target)], 1)
    assert "⟦2⟧" in source + target or [*map(pair.source.count, SYMBOLS)] == [*map(pair.target.count, SYMBOLS)]


def test_symbols_that_are_added_to_training_pairs_stay_whole() -> None:
    sides = zip(*with_symbols([Pair("cat Katze", "eine Katze.")] * 500, 0.9), strict=True)
    left, right = ([[symbol for symbol in SYMBOLS if symbol in text] for text in side] for side in sides)
    assert left == right
    assert 400 < sum(map(bool, left)) < 500  # Binomial with p = 0.9: mean 450, standard deviation 6.7.
