"""The merges of a BPE model: without dropout SentencePiece's own segmentation, with it the paper's distribution."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_core.config import Bpe
from transformer_core.corpus.bpe_dropout import resegmented
from transformer_core.corpus.merges import Merges
from transformer_core.corpus.subword import EOS, UNK, Subword, train_subword
from transformer_core.corpus.text import normalise

# Letters that combine, that join, of both directions, beyond 16 bits; a private one of SentencePiece's (U+2585), which it never learns.
ODD = "a b.ß\u0301\u0600אب\u0e33한\u1100\u20e3\u2028\ufeff\ufffd\uff21\u2047\u2585😀👩🏽\u2581\U0001d518犬"
SYMBOLS = ["<n>", "a.", "⁇", "Q", "Q9"]
SENTENCES = [f"{noun} sees {number} {noun}s and other horses there" for noun in ("dog", "cat", "horse", "bird") for number in range(20)]
SENTENCES.append(" ".join(ODD.replace("\u2585", "").replace("犬", "")))
BPE = Bpe(init_from=None, vocab_size=130, type="bpe", character_coverage=1.0, sample=None, seed=1, user_symbols=SYMBOLS)


@pytest.fixture(scope="module")
def subword(tmp_path_factory: pytest.TempPathFactory) -> Subword:
    path = tmp_path_factory.mktemp("subword") / "spm.model"
    train_subword(SENTENCES, path, BPE)
    return Subword.load(path)


@pytest.fixture(scope="module")
def merges(subword: Subword) -> Merges:
    return Merges(subword)


texts = st.lists(st.sampled_from(["horses", "there", "bird", "hors", "re", " ", *SYMBOLS, *ODD]), max_size=30).map("".join).map(normalise)


def anew(subword: Subword, merges: Merges, texts: list[str], probability: float, seed: int = 1) -> list[list[int]]:
    sentences = [np.array(ids, np.uint16) for ids in subword.encode_clean(texts)]
    found = resegmented(sentences, merges, probability, np.random.default_rng(seed))
    assert {sentence.dtype for sentence in found} == {np.dtype(np.uint16)}
    return [sentence.tolist() for sentence in found]


@settings(deadline=None)
@given(texts)
def test_all_merges_made_are_the_segmentation_of_sentencepiece(subword: Subword, merges: Merges, text: str) -> None:
    (ids,) = map(np.array, subword.encode_clean([text]))
    for begin, end in pairwise([*np.flatnonzero(merges.begins[ids]), len(ids)]):
        word = ids[begin:end]
        characters = np.pad(merges.apart(word), 1)[None]
        assert characters.size == 2 + len(word) + merges.counts[word].sum()
        together = merges.together(characters, np.array([len(text) + 1]), 0.5, np.random.default_rng(1))
        assert together[together > 0].tolist() == word.tolist()


@settings(deadline=None)
@given(texts, st.floats(0, 1, exclude_max=True), st.integers(0, 2**64))
def test_another_segmentation_is_of_the_same_text_and_keeps_what_no_merge_has_made(
    subword: Subword, merges: Merges, text: str, probability: float, seed: int
) -> None:
    (plain,) = subword.encode_clean([text])
    (found,) = anew(subword, merges, [text], probability, seed)
    assert subword.decode(found) == subword.decode(plain)
    assert found[-1] == EOS
    whole = {UNK, *(subword.processor.piece_to_id(symbol) for symbol in SYMBOLS)}
    assert [token for token in found if token in whole] == [token for token in plain if token in whole]


def test_without_dropout_nothing_changes(subword: Subword, merges: Merges) -> None:
    assert anew(subword, merges, SENTENCES, 0.0) == subword.encode_clean(SENTENCES)


def test_with_nearly_all_merges_left_out_a_text_is_its_characters(subword: Subword, merges: Merges) -> None:
    # One merge in a million is made, and there are some 4,000 to draw.
    found = anew(subword, merges, SENTENCES[:-1], 1 - 1e-6)
    assert [[subword.processor.id_to_piece(token) for token in ids[:-1]] for ids in found] == [
        list("\u2581" + text.replace(" ", "\u2581")) for text in SENTENCES[:-1]
    ]


def of_algorithm_1(subword: Subword, word: tuple[str, ...], probability: float) -> Counter[tuple[str, ...]]:
    """The probability of each segmentation, by the paper's algorithm as it stands there."""
    pieces = {subword.processor.id_to_piece(token): subword.processor.get_score(token) for token in range(4, subword.vocab_size)}
    possible = [(-pieces[left + right], place) for place, (left, right) in enumerate(pairwise(word)) if left + right in pieces]
    found = Counter({word: probability ** len(possible)})
    for better, (_, place) in enumerate(sorted(possible)):
        merged = (*word[:place], word[place] + word[place + 1], *word[place + 2 :])
        for end, share in of_algorithm_1(subword, merged, probability).items():
            found[end] += probability**better * (1 - probability) * share
    return found


@pytest.mark.parametrize("probability", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("word", ["horses", "there", "bird"])
def test_segmentations_are_as_frequent_as_by_algorithm_1(subword: Subword, merges: Merges, word: str, probability: float) -> None:
    draws = 5_000
    # Words of many lengths in between, so that they are put together in several groups.
    found = anew(subword, merges, [f"{word} horsesthere{'hors' * 9} bird {word}"] * draws, probability)
    expected = of_algorithm_1(subword, ("\u2581", *word), probability)
    assert sum(expected.values()) == pytest.approx(1)
    assert len(expected) > 3
    for words in (slice(0, 1), slice(-1, None)):
        ends = Counter(_words(subword, ids)[words][0] for ids in found)
        assert set(ends) <= set(expected)
        for end, share in expected.items():
            # Binomial: five standard deviations either way, and one draw for those hardly ever seen.
            assert abs(ends[end] - draws * share) <= 5 * (draws * share * (1 - share)) ** 0.5 + 1


def _words(subword: Subword, ids: list[int]) -> list[tuple[str, ...]]:
    """The pieces of each word."""
    words: list[tuple[str, ...]] = []
    for token in ids[:-1]:
        piece = subword.processor.id_to_piece(token)
        if piece.startswith("\u2581"):
            words.append(())
        words[-1] += (piece,)
    return words
