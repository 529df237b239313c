"""Words of pieces, attention between them, and the word that is looked at."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_core.evaluation.words import by_word, choose_word, words_of

PIECES = ["▁the", "▁dog", "s", "▁see", ".", "</s>"]


def texts(pieces: list[str]) -> list[str]:
    return [word.text for word in words_of(pieces)]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (PIECES, ["the", "dogs", "see", ".", "</s>"]),
        (["▁do", "n", "'", "t", "!", "</s>"], ["don't", "!", "</s>"]),
        (["▁", '"', "H", "i", '"', ".", "</s>"], ['"', "Hi", '".', "</s>"]),
        (["▁", "H", "i", "</s>"], ["Hi", "</s>"]),
        (["▁cat.", "</s>"], ["cat.", "</s>"]),
        (["▁well", "-", "known", ",", "</s>"], ["well-known", ",", "</s>"]),
        (["▁.", ".", ".", "</s>"], ["...", "</s>"]),
        (["▁", "<unk>", "a", "</s>"], ["<unk>a", "</s>"]),
        (["▁", "</s>"], ["▁", "</s>"]),
        (["▁注意", "力", "。", "</s>"], ["注意", "力", "。", "</s>"]),
        (["▁", "注意", "ab", "</s>"], ["注意", "ab", "</s>"]),
        (["▁강아", "지", "</s>"], ["강아지", "</s>"]),
        (["</s>"], ["</s>"]),
    ],
)
def test_pieces_make_the_words_that_one_reads(pieces: list[str], words: list[str]) -> None:
    assert texts(pieces) == words


@given(st.lists(st.text(alphabet="▁aB.'注" + '"', min_size=1, max_size=3), max_size=8).map(lambda pieces: [*pieces, "</s>"]))
def test_every_piece_is_in_one_word_in_order(pieces: list[str]) -> None:
    assert [place for word in words_of(pieces) for place in word.pieces] == list(range(len(pieces)))


def test_weights_are_summed_over_the_pieces_attended_to_and_averaged_over_those_that_attend() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(6), size=(3, 6)).astype(np.float32)  # Of three heads.
    weights[1, :3] = [[0.1, 0.2, 0.3, 0.25, 0.1, 0.05], [1, 0, 0, 0, 0, 0], [0, 0.5, 0, 0.5, 0, 0]]
    joined = by_word(weights, words_of(PIECES))
    np.testing.assert_allclose(joined[1, :2], [[0.1, 0.5, 0.25, 0.1, 0.05], [0.5, 0.25, 0.25, 0, 0]], atol=1e-6)
    assert joined.shape == (3, 5, 5)
    np.testing.assert_allclose(joined.sum(axis=2), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("sentence", "language", "place"),
    [
        ("▁The ▁ship ▁is ▁fast , ▁but ▁it ▁is ▁hers </s>", "en", 6),
        ("▁It ▁is ▁his </s>", "en", 0),
        ("▁Das ▁Schiff , ▁das ▁ihm ▁gehört </s>", "de", 4),
    ],
)
def test_a_pronoun_is_looked_at_where_there_is_one(sentence: str, language: str, place: int) -> None:
    words = words_of(sentence.split())
    found, why = choose_word(words, np.zeros((2, len(words), len(words))), language)
    assert (found, why) == (place, "the first pronoun of the sentence")


@pytest.mark.parametrize("language", ["en", "fr"])
def test_without_a_pronoun_the_word_with_the_most_concentrated_attention_on_another_is_looked_at(language: str) -> None:
    words = words_of(PIECES)
    weights = np.full((2, 5, 5), 0.2)
    weights[0, 1] = [0.7, 0.1, 0.1, 0.1, 0]
    weights[1, 1] = [0, 0.1, 0.7, 0.1, 0.1]
    # What is greater does not count: on the word itself, on punctuation, on the end, of punctuation, in one head alone.
    weights[:, 0] = [0.9, 0.1, 0, 0, 0]
    weights[0, 2], weights[1, 2] = [1, 0, 0, 0, 0], [0.1, 0, 0, 0.5, 0.4]
    weights[:, 3] = [1, 0, 0, 0, 0]
    place, why = choose_word(words, weights, language)
    assert words[place].text == "dogs"
    assert why.startswith("the word whose heads give")


def test_a_sentence_without_words_is_looked_at_too() -> None:
    words = words_of(["▁.", "</s>"])
    assert choose_word(words, np.full((1, 2, 2), 0.5), "en")[0] == 0
