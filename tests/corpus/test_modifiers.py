"""Modifiers of the training text."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.corpus.encoded import learnt_subword, segmenting, write_binarized
from transformer_core.config import Modifier
from transformer_core.corpus.text import Pair
from transformer_core.corpus.tokens.batches import Cursor
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.corpus.tokens.bpe_dropout import MODIFIERS
from transformer_core.corpus.tokens.subword import Subword

NUMBER = 400
LETTERS = "abdeghiknorstu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs with a word of their own, whose target is the source backwards; each tenth begins with a tag."""
    made, random = tmp_path_factory.mktemp("text"), Random(1)
    words = {"".join(random.choices(LETTERS, k=6)) for _ in range(NUMBER + 50)}
    sources = ["<t> " * (number % 10 == 0) + f"it is a {word}, I see." for number, word in enumerate(sorted(words)[:NUMBER])]
    targets = [f"{source.split()[-3]} see I." for source in sources]
    others = ["# * ~ ^ _ | \\ < > + =", LETTERS.upper(), *map(str.upper, sources)]
    subword = learnt_subword([*sources, *targets, *others], made / "spm.model", vocab_size=120, user_symbols=["<t>"])
    write_binarized(made, subword.encode_clean(sources), subword.encode_clean(targets), subword)
    return made


def epoch_of(folder: Path, epoch: int = 0, budget: int = 200, **shares: float) -> dict[int, Pair[str]]:
    """The pairs of an epoch by their numbers, as text."""
    subword, split = Subword.load(folder / "spm.model"), open_split(folder / "train")
    dropout, updates = segmenting(folder, budget, epoch, modifiers=shares)
    found = {}
    for done, update in enumerate(updates):
        for part in dropout.segmented(update, Cursor(epoch, done))[1]:
            assert part.lengths.max() <= split.longest
            for number, source, target in zip(part.numbers.tolist(), part.sources, part.targets, strict=True):
                found[number] = Pair(subword.decode(source), subword.decode(target))
    return found


@pytest.mark.parametrize("modifier", MODIFIERS)
def test_a_share_of_the_pairs_is_modified_others_in_each_epoch_and_none_with_a_symbol(folder: Path, modifier: Modifier) -> None:
    plain = epoch_of(folder)
    first, again, other, smaller = (epoch_of(folder, **{modifier: 0.4}, **more) for more in ({}, {}, {"epoch": 1}, {"budget": 100}))
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


def test_a_typo_keeps_the_first_letter_of_a_word_and_noise_keeps_all() -> None:
    text = Pair("understanding everything", "alles verstehen")
    typed, noisy = ({MODIFIERS[name](text, Random(seed)).source for seed in range(50)} for name in ("typos", "noise"))
    assert len(typed) > 30 < len(noisy)
    assert all([word[0] for word in source.split()] == ["u", "e"] and abs(len(source) - 24) < 9 for source in typed)
    assert {"".join(letter for letter in source if letter.isalpha() or letter == " ") for source in noisy} == {text.source}


def test_without_modifiers_the_tokens_stay(folder: Path) -> None:
    split, (dropout, (update, *_)) = open_split(folder / "train"), segmenting(folder, 200)
    for part in dropout.segmented(update, Cursor(0, 0))[1]:
        assert all(map(np.array_equal, part.sources, split.pairs(part.numbers).sources))
