"""Mixes: the pairs of the corpus' parts in each stage of a training, and the way of a part's name from the catalogue to the batches."""

from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch

from tests.corpus.encoded import learnt_subword
from tests.corpus.test_cleaning import cleaned, write_raw_pairs
from tests.refusals import refused
from tests.training.test_trainer import SETTINGS
from transformer_core.config import MixStage
from transformer_core.corpus.text import read_lines
from transformer_core.corpus.tokens.batches import BatchPlan, Cursor, GlobalBatch, mix_of
from transformer_core.corpus.tokens.binarizing import encode_split, write_split
from transformer_core.corpus.tokens.binary import BinarizedSplit, check_split, open_split
from transformer_core.training.devices import Rank
from transformer_core.training.loader import Batch, make_batch, shares

STAGES = [MixStage(until=7, weights={"old": 1}), MixStage(until=0.5, weights={"old": 1, "new": 2}), MixStage(weights={"new": 1})]
MIXED = SETTINGS.model_copy(update={"updates": 40, "mix": STAGES})
OLD, NEW = 60, 20


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> BinarizedSplit:
    """Raw text of two named sources, after cleaning and binarizing; a pair of each is dropped on the way."""
    folder = tmp_path_factory.mktemp("parts")
    old = [(f"old {number}", f"alt {number}") for number in range(OLD)]
    new = [(f"new word {number}", f"neues Wort {number}") for number in range(NEW)]
    write_raw_pairs(folder / "raw", [("", "x"), *old, *new, ("new " * 20, "neu " * 20)])
    (folder / "raw/train.parts").write_text("old\n" * (1 + OLD) + "new\n" * (NEW + 1))
    cleaned(folder)
    sides = folder / "clean/train.en", folder / "clean/train.de"
    subword = learnt_subword([line for side in sides for line in read_lines(side)], folder / "spm.model", vocab_size=60)
    origin = {"vocabulary_hash": subword.hash, "vocab_size": subword.vocab_size, "source": "en", "target": "de"}
    parts = encode_split(*sides, subword, 20, 1)
    write_split(folder / "train", parts, names=read_lines(folder / "clean/train.parts"), **origin)
    check_split(folder / "train")
    return open_split(folder / "train")


def plan_of(split: BinarizedSplit) -> BatchPlan:
    return BatchPlan(split.source.lengths, split.target.lengths, 60, 40, 3, mix_of(MIXED, split))


def pairs_of(update: GlobalBatch) -> list[int]:
    return np.concatenate(update.microbatches).tolist()


def test_each_pair_keeps_its_part_through_cleaning_and_binarizing(split: BinarizedSplit) -> None:
    assert split.part_names == ["old", "new"]
    assert split.part_of.tolist() == [0] * OLD + [1] * NEW


def test_an_epoch_draws_each_part_in_proportion_to_its_weight(split: BinarizedSplit) -> None:
    first, second, third = (sorted(pair for update in plan_of(split).epoch(5, stage) for pair in pairs_of(update)) for stage in range(3))
    assert first == list(range(OLD))
    assert third == list(range(OLD, OLD + NEW))
    counts = np.bincount(second, minlength=OLD + NEW)
    assert (counts[:OLD].sum(), counts[OLD:].sum()) == (27, 53)  # Of 80, a third and two thirds.
    assert set(counts[:OLD]) == {0, 1}
    assert set(counts[OLD:]) == {2, 3}


def test_a_stage_ends_after_its_update_and_a_resumed_training_has_the_same_batches(split: BinarizedSplit) -> None:
    straight, cursors = [], [Cursor(0, 0)]
    for update, after in islice(plan_of(split).updates_from(cursors[0]), 40):
        straight.append(pairs_of(update))
        cursors.append(after)
    parts = [{int(split.part_of[pair]) for pair in pairs} for pairs in straight]
    assert set().union(*parts[:7]) == {0}
    assert {0, 1} == set().union(*parts[7:20])
    assert set().union(*parts[20:]) == {1}
    for done, cursor in enumerate(cursors[:38]):
        assert [pairs_of(update) for update, _ in islice(plan_of(split).updates_from(cursor, done), 3)] == straight[done : done + 3]


def test_two_ranks_share_the_batches_of_one_after_a_resume_at_the_end_of_a_stage(split: BinarizedSplit) -> None:
    before = [after for _, after in islice(plan_of(split).updates_from(Cursor(0, 0)), 7)][-1]

    def sources(index: int, count: int) -> list[dict[int, torch.Tensor]]:
        rank = Rank(index, count, torch.device("cpu"))
        with closing(shares(plan_of(split).updates_from(before, 7), split, rank, make_batch, None)) as coming:
            found = [share.microbatches for share in islice(coming, 20)]
        return [{place: batch.source for place, batch in batches.items() if isinstance(batch, Batch)} for batches in found]

    for alone, first, second in zip(sources(0, 1), sources(0, 2), sources(1, 2), strict=True):
        both = first | second
        assert alone.keys() == both.keys()
        assert all(torch.equal(alone[place], both[place]) for place in alone)


def test_an_unknown_part_is_refused_with_the_names_there_are(split: BinarizedSplit) -> None:
    wrong = MIXED.model_copy(update={"mix": [MixStage(weights={"news": 1, "old": 1})]})
    with refused(78, r"train\.mix\.0\.weights: the training pairs have no part 'news'\. Its parts: old, new\."):
        mix_of(wrong, split)
