"""Updates segmented anew: the same texts, the same for the same place in the plan, within the same budgets."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from transformer_core import recipes
from transformer_core.config import Bpe, Train
from transformer_core.corpus.batches import BatchPlan, Cursor, Update
from transformer_core.corpus.binarizing import EncodedPairs, write_split
from transformer_core.corpus.binary import BinarizedSplit, Meta, Pairs, open_split, write_meta
from transformer_core.corpus.bpe_dropout import BpeDropout
from transformer_core.corpus.subword import Subword, train_subword

WORDS = ("the", "horse", "horses", "sees", "seen", "other", "another", "there", "where", "nothing", "thing", "things", "sing", "singing")
PAIRS = 300
SETTINGS = Train.model_validate(YAML(typ="safe", pure=True).load(recipes.read("synthetic"))["train"])
SETTINGS = SETTINGS.model_copy(update={"tokens_per_update": 200, "tokens_per_microbatch": 80, "bpe_dropout": 0.2})


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
    bpe = Bpe(init_from=None, vocab_size=50, type="bpe", character_coverage=1.0, sample=None, seed=1, user_symbols=[])
    train_subword(sources, directory / "spm.model", bpe)
    subword = Subword.load(directory / "spm.model")
    parts = [EncodedPairs.of(subword.encode_clean(sources), subword.encode_clean(targets), 1, subword.vocab_size, None)]
    counts = write_split(directory / "train", parts)
    meta = Meta(vocabulary_hash=subword.hash, vocab_size=subword.vocab_size, source="en", target="de", splits={"train": counts})
    write_meta(directory, meta)
    return Corpus(directory, subword, open_split(directory, "train"))


def updates_of(corpus: Corpus, epoch: int = 0, settings: Train = SETTINGS) -> list[Update]:
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
from transformer_core.corpus.binary import open_split
from transformer_core.corpus.subword import Subword
from tests.corpus.test_bpe_dropout import Corpus, epoch_of
directory = Path(sys.argv[1])
print(json.dumps(list(epoch_of(Corpus(directory, Subword.load(directory / "spm.model"), open_split(directory, "train"))).items())))
"""


def test_another_process_segments_the_same(corpus: Corpus) -> None:
    """SentencePiece's own sampling does not: from 0.2.2 on it salts its seed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONHASHSEED": "1"}
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
