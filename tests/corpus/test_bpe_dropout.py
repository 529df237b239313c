import json
import os
import string
import subprocess
import sys
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.encoded import learnt_subword, write_binarized
from transformer_core import recipes
from transformer_core.config import Modifier
from transformer_core.corpus.text import Pair, normalise
from transformer_core.corpus.tokens.batches import BatchPlan, Cursor, GlobalBatch
from transformer_core.corpus.tokens.binary import Pairs, open_split
from transformer_core.corpus.tokens.bpe_dropout import BpeDropout
from transformer_core.corpus.tokens.modifiers import MODIFIERS
from transformer_core.corpus.tokens.subword import UNK, Subword, two_sided

# Letters that combine, that join, of both directions, beyond 16 bits; a private one of SentencePiece's (U+2585), which it never learns.
ODD = "a b.ß\u0301\u0600אب\u0e33한\u1100\u20e3\u2028\ufeff\ufffd\uff21\u2047\u2585😀👩🏽\u2581\U0001d518犬"
SYMBOLS = ["<n>", "a.", "⁇", "Q", "Q9"]
Segmenting = tuple[Subword, BpeDropout, list[GlobalBatch]]
WORDS = ["horse", "horses", "sees", "seen", "other", "another", "there", "where", "nothing", "things", "singing", "bird"]
NUMBER = 400
LETTERS = "abdeghiknorstu"


@pytest.fixture(scope="module", params=[False, True], ids=["unknown", "bytes"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary, and 300 pairs of 1 to 40 words, few of them long.

    Targets are in reverse, some with an unknown character or its bytes.
    """
    made, random = tmp_path_factory.mktemp("corpus"), Random(1)
    sources = [" ".join(random.choices(WORDS, k=min(40, 1 + int(random.expovariate(1 / 6))))) for _ in range(300)]
    targets = [" ".join(source.split()[::-1]) + " 犬" * (number % 10 == 0) for number, source in enumerate(sources)]
    odd = " ".join(ODD.replace("\u2585", "").replace("犬", ""))
    settings = {"vocab_size": 130 + 256 * request.param, "byte_fallback": request.param, "user_symbols": SYMBOLS}
    subword = learnt_subword([*sources, odd], made / "spm.model", **settings)
    write_binarized(made, subword.encode_clean(sources), subword.encode_clean(targets), subword)
    return made


def segmenting(folder: Path, budget: int = 200, epoch: int = 0, **settings: Any) -> Segmenting:
    """The vocabulary in a folder, and what segments the updates of an epoch of the pairs there with these settings of `train`."""
    subword, split = Subword.load(folder / "spm.model"), open_split(folder / "train")
    changes = {"tokens_per_update": 2 * budget, "tokens_per_microbatch": budget, **settings}
    dropout = BpeDropout(subword, split, recipes.load("tatoeba").train.model_copy(update=changes))
    return subword, dropout, BatchPlan(split.source.lengths, split.target.lengths, 2 * budget, budget, 1).epoch(epoch)


def tokens_of(parts: list[Pairs]) -> list[tuple[int, list[int], list[int]]]:
    rows = chain.from_iterable(zip(part.numbers.tolist(), part.sources, part.targets, strict=True) for part in parts)
    return [(number, source.tolist(), target.tolist()) for number, source, target in rows]


def epoch_of(directory: Path, epoch: int = 0, seed: int = 1) -> list[list[tuple[int, list[int], list[int]]]]:
    _, dropout, updates = segmenting(directory, bpe_dropout=0.2, seed=seed)
    return [tokens_of(dropout.segmented(update, Cursor(epoch, done))[1]) for done, update in enumerate(updates)]


OTHER = """
import json, sys
from pathlib import Path
from tests.corpus.test_bpe_dropout import epoch_of
print(json.dumps(epoch_of(Path(sys.argv[1]))))
"""


def test_another_process_segments_the_same(directory: Path) -> None:
    """SentencePiece's own sampling does not: from 0.2.2 on it salts its seed."""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", OTHER, str(directory)]
    said = subprocess.run(command, check=True, timeout=300, env=environment, capture_output=True, text=True).stdout
    assert json.loads(said) == json.loads(json.dumps(epoch_of(directory)))


def test_seeds_epochs_and_updates_draw_each_for_itself_whatever_was_segmented_before(directory: Path) -> None:
    first = epoch_of(directory)
    assert all(other != first for other in (epoch_of(directory, epoch=1), epoch_of(directory, seed=2)))
    _, dropout, updates = segmenting(directory, bpe_dropout=0.2)
    assert tokens_of(dropout.segmented(updates[0], Cursor(0, 1))[1]) != first[0]
    assert tokens_of(dropout.segmented(updates[-1], Cursor(0, len(updates) - 1))[1]) == first[-1]


@pytest.mark.parametrize("probability", [0.05, 0.5, 1 - 1e-6])
def test_an_update_keeps_its_pairs_within_the_budgets_and_counts_their_new_tokens(directory: Path, probability: float) -> None:
    longest = open_split(directory / "train").longest
    _, dropout, updates = segmenting(directory, longest + 7, bpe_dropout=probability)
    for done, plain in enumerate(updates):
        update, parts = dropout.segmented(plain, Cursor(0, done))
        assert [part.numbers.tolist() for part in parts] == [numbers.tolist() for numbers in update.microbatches]
        assert sorted(np.concatenate(update.microbatches)) == sorted(np.concatenate(plain.microbatches))
        assert all(part.lengths.max() <= longest and len(part) * part.lengths.max() <= longest + 7 for part in parts)
        assert [update.source_tokens, update.target_tokens] == sum(part.lengths.sum(axis=1) for part in parts).tolist()
        assert update.positions == sum(len(part) * part.lengths.max(axis=1).sum() for part in parts)


texts = st.lists(st.sampled_from([*WORDS, "hors", "re", " ", *SYMBOLS, *ODD]), max_size=30).map("".join).map(normalise)


@given(texts, st.floats(0, 1, exclude_max=True), st.integers(0, 2**64))
def test_text_symbols_and_unknown_characters_stay(directory: Path, text: str, probability: float, seed: int) -> None:
    subword, dropout, _ = segmenting(directory, bpe_dropout=probability)
    (plain,) = map(np.array, subword.encode_clean([text]))
    (found,) = dropout.resegmented([plain], np.random.default_rng(seed))
    assert subword.decode(found) == subword.decode(plain)
    whole = {UNK, *map(subword.processor.piece_to_id, SYMBOLS)}
    assert [token for token in found if token in whole] == [token for token in plain if token in whole]
    assert probability or found.tolist() == plain.tolist()


def of_algorithm_1(costs: dict[str, float], word: tuple[str, ...], probability: float) -> Counter[tuple[str, ...]]:
    """The probability of each segmentation, by the paper's algorithm as it stands there."""
    possible = sorted((costs[left + right], place) for place, (left, right) in enumerate(pairwise(word)) if left + right in costs)
    found = Counter({word: probability ** len(possible)})
    for better, (_, place) in enumerate(possible):
        merged = (*word[:place], word[place] + word[place + 1], *word[place + 2 :])
        for end, share in of_algorithm_1(costs, merged, probability).items():
            found[end] += probability**better * (1 - probability) * share
    return found


@pytest.mark.parametrize("probability", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("word", ["horses", "there"])
def test_segmentations_are_as_frequent_as_by_algorithm_1(directory: Path, word: str, probability: float) -> None:
    subword, dropout, _ = segmenting(directory, bpe_dropout=probability)
    draws = 5_000
    sentences = [np.array(subword.encode_clean([word])[0])] * draws
    found = Counter(tuple(subword.pieces[token] for token in ids[:-1]) for ids in dropout.resegmented(sentences, np.random.default_rng(1)))
    expected = of_algorithm_1(subword.merge_costs, ("\u2581", *word), probability)
    assert set(found) <= set(expected)
    assert len(expected) > 3
    for end, share in expected.items():
        # Binomial: five standard deviations either way, and one draw for those hardly ever seen.
        assert abs(found[end] - draws * share) <= 5 * (draws * share * (1 - share)) ** 0.5 + 1


@pytest.fixture(scope="module")
def backwards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs with a word of their own, whose target is the source backwards; each tenth begins with a tag."""
    made, random = tmp_path_factory.mktemp("text"), Random(1)
    words = {"".join(random.choices(LETTERS, k=6)) for _ in range(NUMBER + 50)}
    sources = ["<t> " * (number % 10 == 0) + f"it is a {word}, I see." for number, word in enumerate(sorted(words)[:NUMBER])]
    targets = [f"{source.split()[-3]} see I." for source in sources]
    others = ["# * ~ ^ _ | \\ < > + =", LETTERS.upper(), *map(str.upper, sources)]
    subword = learnt_subword([*sources, *targets, *others], made / "spm.model", vocab_size=120, user_symbols=["<t>"])
    write_binarized(made, subword.encode_clean(sources), subword.encode_clean(targets), subword)
    return made


def modified(folder: Path, epoch: int = 0, budget: int = 200, **shares: float) -> dict[int, Pair[str]]:
    """The pairs of an epoch by their numbers, as text."""
    subword, dropout, updates = segmenting(folder, budget, epoch, modifiers=shares)
    longest, found = open_split(folder / "train").longest, {}
    for done, update in enumerate(updates):
        for part in dropout.segmented(update, Cursor(epoch, done))[1]:
            assert part.lengths.max() <= longest
            for number, source, target in zip(part.numbers.tolist(), part.sources, part.targets, strict=True):
                found[number] = Pair(subword.decode(source), subword.decode(target))
    return found


@pytest.mark.parametrize("modifier", MODIFIERS)
def test_a_share_of_the_pairs_is_modified_others_in_each_epoch_and_none_with_a_symbol(backwards: Path, modifier: Modifier) -> None:
    plain = modified(backwards)
    first, again, other, smaller = (modified(backwards, **{modifier: 0.4}, **more) for more in ({}, {}, {"epoch": 1}, {"budget": 100}))
    assert plain.keys() == first.keys() == set(range(NUMBER))
    assert first == again == smaller != other
    changed = [number for number in plain if first[number] != plain[number]]
    # Binomial with n = 360 and p = 0.4: mean 144, standard deviation 9.3. Typos and noise leave many as they are.
    assert 30 < len(changed) < 185
    assert all(number % 10 for number in changed)
    for number in changed:
        (source, target), (old, translation) = first[number], plain[number]
        if modifier in ("typos", "noise"):
            assert (target, source != old) == (translation, True)
        else:
            assert target != translation
            assert source.casefold().rstrip(".") == old.casefold().rstrip(".")


def test_a_vocabulary_of_two_sides_reads_the_sides_apart(tmp_path: Path) -> None:
    lines = [" ".join(Random(number).choices(WORDS, k=5 if number else 40)) for number in range(300)]
    sides, others = (lines, [line.upper() for line in lines]), string.ascii_letters
    files = tmp_path / "source", tmp_path / "target"
    learnt = [learnt_subword([*side, others], file, vocab_size=70, type="unigram") for side, file in zip(sides, files, strict=True)]
    pieces = dict.fromkeys(piece for subword in learnt for piece in subword.pieces[4:])
    (tmp_path / "spm.model").write_bytes(two_sided(*(file.read_bytes() for file in files), [*pieces]))
    subword = Subword.load(tmp_path / "spm.model")
    write_binarized(tmp_path, subword.encode_clean(sides[0]), subword.of_target.encode_clean(sides[1]), subword)
    found = [pair for _, pair in sorted(modified(tmp_path, typos=0.9).items())]
    assert [pair.target for pair in found] == sides[1]
    assert sum(map(str.__ne__, lines, (pair.source for pair in found))) > 150


def test_a_typo_keeps_the_first_letter_of_a_word_and_noise_keeps_all() -> None:
    text = Pair("understanding everything", "alles verstehen")
    typed, noisy = ({MODIFIERS[name](text, Random(seed)).source for seed in range(50)} for name in ("typos", "noise"))
    assert len(typed) > 30 < len(noisy)
    assert all([word[0] for word in source.split()] == ["u", "e"] and abs(len(source) - 24) < 9 for source in typed)
    assert {"".join(letter for letter in source if letter.isalpha() or letter == " ") for source in noisy} == {text.source}


def test_without_modifiers_the_tokens_stay(backwards: Path) -> None:
    split, (_, dropout, (update, *_)) = open_split(backwards / "train"), segmenting(backwards)
    for part in dropout.segmented(update, Cursor(0, 0))[1]:
        assert all(map(np.array_equal, part.sources, split.pairs(part.numbers).sources))
