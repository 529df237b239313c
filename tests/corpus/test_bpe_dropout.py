"""BPE-dropout: without it SentencePiece's segmentation, with it the paper's distribution; updates stay reproducible and within budgets."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.corpus.encoded import learnt_subword, write_binarized
from transformer_core import recipes
from transformer_core.config import Train
from transformer_core.corpus.text import normalise
from transformer_core.corpus.tokens.batches import BatchPlan, Cursor, GlobalBatch
from transformer_core.corpus.tokens.binary import BinarizedSplit, Pairs, open_split
from transformer_core.corpus.tokens.bpe_dropout import BpeDropout, Merges, resegmented
from transformer_core.corpus.tokens.subword import EOS, UNK, Subword

WORDS = ("the", "horse", "horses", "sees", "seen", "other", "another", "there", "where", "nothing", "thing", "things", "sing", "singing")
PAIRS = 300
SETTINGS = recipes.load("tatoeba").train.model_copy(update={"tokens_per_update": 200, "tokens_per_microbatch": 80, "bpe_dropout": 0.2})


class Corpus(NamedTuple):
    directory: Path
    subword: Subword
    split: BinarizedSplit


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Sources of 1 to 40 words, few of them long, targets of the same in reverse; every 10th of these holds a character never seen."""
    directory = tmp_path_factory.mktemp("corpus")
    random = Random(1)
    sources = [" ".join(random.choices(WORDS, k=min(40, 1 + int(random.expovariate(1 / 6))))) for _ in range(PAIRS)]
    targets = [" ".join(source.split()[::-1]) + " 犬" * (number % 10 == 0) for number, source in enumerate(sources)]
    subword = learnt_subword(sources, directory / "spm.model", vocab_size=50)
    write_binarized(directory, subword.encode_clean(sources), subword.encode_clean(targets), subword)
    return Corpus(directory, subword, open_split(directory / "train"))


def updates_of(corpus: Corpus, epoch: int = 0, settings: Train = SETTINGS) -> list[GlobalBatch]:
    lengths = corpus.split.source.lengths, corpus.split.target.lengths
    return BatchPlan(*lengths, settings.tokens_per_update, settings.tokens_per_microbatch, settings.seed).epoch(epoch)


def tokens_of(microbatches: list[Pairs]) -> dict[int, tuple[list[int], list[int]]]:
    """The two sides of each pair by its number."""
    return {
        int(number): (source.tolist(), target.tolist())
        for pairs in microbatches
        for number, source, target in zip(pairs.numbers, pairs.sources, pairs.targets, strict=True)
    }


def epoch_of(corpus: Corpus, epoch: int = 0, settings: Train = SETTINGS) -> dict[int, tuple[list[int], list[int]]]:
    """All pairs of the plan's first epoch, segmented as if they stood in this one."""
    dropout = BpeDropout(corpus.subword, corpus.split, settings)
    updates = enumerate(updates_of(corpus))
    return {
        number: sides for done, update in updates for number, sides in tokens_of(dropout.segmented(update, Cursor(epoch, done))[1]).items()
    }


def test_every_pair_of_an_update_keeps_its_text(corpus: Corpus) -> None:
    found = epoch_of(corpus)
    assert sorted(found) == list(range(PAIRS))
    plain = {number: (corpus.split.source[number].tolist(), corpus.split.target[number].tolist()) for number in found}
    for number, sides in found.items():
        assert [*map(corpus.subword.decode, sides)] == [*map(corpus.subword.decode, plain[number])]
    anew = [number for number in found if found[number] != plain[number]]
    assert len(anew) > PAIRS / 2


def test_an_update_s_tokens_are_the_same_again_whatever_was_segmented_before(corpus: Corpus) -> None:
    updates = updates_of(corpus)
    in_order = BpeDropout(corpus.subword, corpus.split, SETTINGS)
    backwards = BpeDropout(corpus.subword, corpus.split, SETTINGS)
    straight = [in_order.segmented(update, Cursor(2, done)) for done, update in enumerate(updates)]
    reverse = [backwards.segmented(update, Cursor(2, done)) for done, update in reversed([*enumerate(updates)])]
    for (update, microbatches), (again, microbatches_again) in zip(straight, reversed(reverse), strict=True):
        assert tokens_of(microbatches) == tokens_of(microbatches_again)
        assert [numbers.tolist() for numbers in update.microbatches] == [numbers.tolist() for numbers in again.microbatches]


def test_seeds_epochs_updates_and_sides_draw_each_for_itself(corpus: Corpus) -> None:
    first = epoch_of(corpus)
    assert first == epoch_of(corpus)
    assert first != epoch_of(corpus, epoch=1)
    assert first != epoch_of(corpus, settings=SETTINGS.model_copy(update={"seed": SETTINGS.seed + 1}))
    dropout = BpeDropout(corpus.subword, corpus.split, SETTINGS)
    update = updates_of(corpus)[0]
    assert tokens_of(dropout.segmented(update, Cursor(0, 0))[1]) != tokens_of(dropout.segmented(update, Cursor(0, 1))[1])
    mirrored = BpeDropout(corpus.subword, BinarizedSplit(corpus.split.source, corpus.split.source, corpus.split.lines), SETTINGS)
    assert any(source != target for source, target in tokens_of(mirrored.segmented(update, Cursor(0, 0))[1]).values())


OTHER = """
import json, sys
from pathlib import Path
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.corpus.tokens.subword import Subword
from tests.corpus.test_bpe_dropout import Corpus, epoch_of
directory = Path(sys.argv[1])
print(json.dumps(list(epoch_of(Corpus(directory, Subword.load(directory / "spm.model"), open_split(directory / "train"))).items())))
"""


def test_another_process_segments_the_same(corpus: Corpus) -> None:
    """SentencePiece's own sampling does not: from 0.2.2 on it salts its seed."""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", OTHER, str(corpus.directory)]
    said = subprocess.run(command, check=True, timeout=60, env=environment, capture_output=True, text=True).stdout
    assert {number: tuple(sides) for number, sides in json.loads(said)} == epoch_of(corpus)


@settings(deadline=None, max_examples=25)  # Each segments an epoch.
@given(
    st.floats(0, 1, exclude_min=True, exclude_max=True), st.integers(0, 400), st.integers(0, 200), st.integers(0, 9), st.integers(0, 2**32)
)
def test_budgets_hold_and_tokens_are_counted_as_they_are(
    corpus: Corpus, probability: float, more_in_update: int, more_in_microbatch: int, epoch: int, seed: int
) -> None:
    longest = int(max(corpus.split.source.lengths.max(), corpus.split.target.lengths.max()))
    changes = {"tokens_per_update": longest + more_in_update, "tokens_per_microbatch": longest + more_in_microbatch}
    wanted = SETTINGS.model_copy(update=changes | {"bpe_dropout": probability, "seed": seed})
    budget = min(wanted.tokens_per_update, wanted.tokens_per_microbatch)
    dropout = BpeDropout(corpus.subword, corpus.split, wanted)
    for done, plain in enumerate(updates_of(corpus, epoch, wanted)):
        update, microbatches = dropout.segmented(plain, Cursor(epoch, done))
        assert [part.numbers.tolist() for part in microbatches] == [numbers.tolist() for numbers in update.microbatches]
        assert sorted(np.concatenate(update.microbatches)) == sorted(np.concatenate(plain.microbatches))
        sides = [([*map(len, part.sources)], [*map(len, part.targets)]) for part in microbatches]
        for source, target in sides:
            assert max(*source, *target) <= longest
            assert len(source) * max(*source, *target) <= budget
        assert update.source_tokens == sum(sum(source) for source, _ in sides)
        assert update.target_tokens == sum(sum(target) for _, target in sides)
        assert update.positions == sum(len(source) * (max(source) + max(target)) for source, target in sides)


def test_more_than_the_longest_sentence_is_never_made_and_most_others_grow(corpus: Corpus) -> None:
    found = epoch_of(corpus, settings=SETTINGS.model_copy(update={"bpe_dropout": 1 - 1e-6}))
    longest = int(max(corpus.split.source.lengths.max(), corpus.split.target.lengths.max()))
    grown = {len(source) for number, (source, _) in found.items() if len(source) > len(corpus.split.source[number])}
    assert longest - 5 <= max(grown) <= longest
    # As characters they would be longer than that: they are as they were.
    kept = [number for number, (source, _) in found.items() if source == corpus.split.source[number].tolist()]
    assert all(len(corpus.subword.decode(found[number][0])) + 2 > longest for number in kept)
    assert kept


# Letters that combine, that join, of both directions, beyond 16 bits; a private one of SentencePiece's (U+2585), which it never learns.
ODD = "a b.ß\u0301\u0600אب\u0e33한\u1100\u20e3\u2028\ufeff\ufffd\uff21\u2047\u2585😀👩🏽\u2581\U0001d518犬"
SYMBOLS = ["<n>", "a.", "⁇", "Q", "Q9"]
SENTENCES = [f"{noun} sees {number} {noun}s and other horses there" for noun in ("dog", "cat", "horse", "bird") for number in range(20)]
SENTENCES.append(" ".join(ODD.replace("\u2585", "").replace("犬", "")))


@pytest.fixture(scope="module")
def subword(tmp_path_factory: pytest.TempPathFactory) -> Subword:
    return learnt_subword(SENTENCES, tmp_path_factory.mktemp("subword") / "spm.model", vocab_size=130, user_symbols=SYMBOLS)


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
    for begin, end in pairwise([*np.flatnonzero(merges.word_initial[ids]), len(ids)]):
        word = ids[begin:end]
        characters = np.pad(merges.characters_of(word), 1)[None]
        assert characters.size == 2 + len(word) + merges.counts[word].sum()
        together = merges.merge(characters, np.array([len(text) + 1]), 0.5, np.random.default_rng(1))
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
