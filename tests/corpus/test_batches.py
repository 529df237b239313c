"""The batch plan: a pure function that loses nobody, keeps its budgets, and draws from the parts of the corpus by their weights."""

from collections.abc import Iterable
from contextlib import closing
from itertools import combinations, islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus.encoded import learnt_subword
from tests.corpus.test_cleaning import cleaned, write_raw_pairs
from tests.refusals import refused
from tests.training.test_trainer import SETTINGS
from transformer_core.config import MixStage
from transformer_core.corpus.text import read_lines
from transformer_core.corpus.tokens.batches import BatchPlan, Cursor, GlobalBatch, even_microbatch_starts, microbatch_starts
from transformer_core.corpus.tokens.binarizing import encode_split, write_split
from transformer_core.corpus.tokens.binary import BinarizedSplit, check_split, open_split
from transformer_core.corpus.tokens.mixing import mix_of
from transformer_core.training.devices import Rank
from transformer_core.training.loader import Batch, make_batch, shares

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)
STAGES = [MixStage(until=7, weights={"old": 1}), MixStage(until=0.5, weights={"old": 1, "new": 2}), MixStage(weights={"new": 1})]
MIXED = SETTINGS.model_copy(update={"updates": 40, "mix": STAGES})
OLD, NEW = 60, 20


def plan_of(lengths: list[tuple[int, int]], seed: int = 1) -> BatchPlan:
    source, target = np.array(lengths, dtype=np.int64).T
    return BatchPlan(source, target, 100, 60, seed)


def numbers_of(updates: Iterable[GlobalBatch]) -> list[int]:
    return [int(n) for update in updates for batch in update.microbatches for n in batch]


@given(LENGTHS, st.integers(0, 5))
def test_an_epoch_holds_each_pair_once_within_the_budgets_of_both_sides(lengths: list[tuple[int, int]], epoch: int) -> None:
    assert sorted(numbers_of(plan_of(lengths).epoch(epoch))) == list(range(len(lengths)))
    for update in plan_of(lengths).epoch(epoch):
        rows = [lengths[number] for number in numbers_of([update])]
        assert update.target_tokens == sum(target for _, target in rows)
        assert len(update.microbatches) == 1 or max(sum(s for s, _ in rows), update.target_tokens) <= 100
        for batch in update.microbatches:
            assert len(batch) * max(max(lengths[int(n)]) for n in batch) <= 60


def test_epochs_differ_and_seeds_differ() -> None:
    lengths = [(1 + n % 9, 1 + n % 7) for n in range(300)]
    first, again, later, other = (numbers_of(plan_of(lengths, seed).epoch(epoch)) for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0)))
    assert first == again
    assert first not in (later, other)


def test_pairs_of_similar_length_share_a_microbatch() -> None:
    random = np.random.default_rng(0)
    source = random.integers(2, 40, 5000)
    target = np.maximum(2, source + random.integers(-3, 4, 5000))
    plan = BatchPlan(source, target, 2000, 2000, seed=1)
    positions = real = 0
    for update in plan.epoch(0):
        for batch in update.microbatches:
            positions += len(batch) * int(source[batch].max() + target[batch].max())
            real += int(source[batch].sum() + target[batch].sum())
    # Sorted by length, the only padding is the spread of one side within a microbatch; random batches of this corpus pad 45%.
    assert 1 - real / positions < 0.1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9).map(sorted), st.integers(0, 60), st.integers(1, 4))
def test_even_microbatches_are_the_best_of_all_ways_to_cut(lengths: list[int], room: int, multiple: int) -> None:
    longest, budget = np.array(lengths), lengths[-1] + room

    def largest(cuts: Iterable[int]) -> int:
        return max(len(part) * int(part[-1]) for part in np.split(longest, list(cuts)))

    fewest = len(list(microbatch_starts(longest, budget)))
    most = min(-(-fewest // multiple) * multiple, len(lengths))
    starts = even_microbatch_starts(longest, budget, multiple)
    assert starts[0] == 0
    assert len(starts) <= most
    best = min(largest(cuts) for count in range(most) for cuts in combinations(range(1, len(lengths)), count))
    assert largest(starts[1:]) == best <= budget


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


def mixed_plan(split: BinarizedSplit) -> BatchPlan:
    return BatchPlan(split.source.lengths, split.target.lengths, 60, 40, 3, mix_of(MIXED, split))


def test_each_pair_keeps_its_part_through_cleaning_and_binarizing(split: BinarizedSplit) -> None:
    assert split.part_names == ["old", "new"]
    assert split.part_of.tolist() == [0] * OLD + [1] * NEW


def test_an_epoch_draws_each_part_in_proportion_to_its_weight(split: BinarizedSplit) -> None:
    first, second, third = (sorted(numbers_of(mixed_plan(split).epoch(5, stage))) for stage in range(3))
    assert first == list(range(OLD))
    assert third == list(range(OLD, OLD + NEW))
    counts = np.bincount(second, minlength=OLD + NEW)
    assert (counts[:OLD].sum(), counts[OLD:].sum()) == (27, 53)  # Of 80, a third and two thirds.
    assert set(counts[:OLD]) == {0, 1}
    assert set(counts[OLD:]) == {2, 3}


def test_a_stage_ends_after_its_update_and_a_resumed_training_has_the_same_batches(split: BinarizedSplit) -> None:
    straight, cursors = [], [Cursor(0, 0)]
    for update, after in islice(mixed_plan(split).updates_from(cursors[0]), 40):
        straight.append(numbers_of([update]))
        cursors.append(after)
    parts = [{int(split.part_of[pair]) for pair in pairs} for pairs in straight]
    assert set().union(*parts[:7]) == {0}
    assert {0, 1} == set().union(*parts[7:20])
    assert set().union(*parts[20:]) == {1}
    for done, cursor in enumerate(cursors[:38]):
        assert [numbers_of([update]) for update, _ in islice(mixed_plan(split).updates_from(cursor, done), 3)] == straight[done : done + 3]


def test_two_ranks_share_the_batches_of_one_after_a_resume_at_the_end_of_a_stage(split: BinarizedSplit) -> None:
    before = [after for _, after in islice(mixed_plan(split).updates_from(Cursor(0, 0)), 7)][-1]

    def sources(index: int, count: int) -> list[dict[int, torch.Tensor]]:
        rank = Rank(index, count, torch.device("cpu"))
        with closing(shares(mixed_plan(split).updates_from(before, 7), split, rank, make_batch, None)) as coming:
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
