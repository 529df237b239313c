"""The pairs of each update: a pure function of corpus, seed, epoch and the two token budgets, the same on every machine."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_core.corpus.tokens.mixing import Mix

Indices = NDArray[np.int64]
Lengths = NDArray[np.integer[Any]]

_LENGTH_BITS = 21


@dataclass(frozen=True)
class GlobalBatch:
    """One global batch.

    Attributes:
        microbatches: the pair numbers of each micro-batch.
        source_tokens: number of source tokens in all pairs, eos included; `target_tokens` likewise.
        positions: number of positions on both sides, padding included.
    """

    microbatches: tuple[Indices, ...]
    source_tokens: int
    target_tokens: int
    positions: int


@dataclass(frozen=True)
class Cursor:
    """A place in the endless sequence of updates: the epoch, and the number of its updates already done."""

    epoch: int
    done: int


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Global batches of about `tokens_per_update` source and as many target tokens (paper 5.1), with pairs of similar length together.

    Each epoch orders the pairs by length, with ties in random order, cuts them into micro-batches, shuffles these and fills updates with
    whole ones. A micro-batch is bounded by its padded size, rows times the longest side; an update by its tokens on each side.

    Raises `ValueError`: a pair is longer than a budget.
    """

    source_lengths: Lengths  # (pairs,) number of tokens of each source, eos included.
    target_lengths: Lengths  # Likewise.
    tokens_per_update: int  # Maximum number of source tokens, and of target tokens, of an update.
    tokens_per_microbatch: int  # Maximum of rows times longest side of a micro-batch.
    seed: int
    mix: Mix | None = None  # The pairs that an epoch draws, which may have some of them several times; None has each once.

    def __post_init__(self) -> None:
        longest = int(max(self.source_lengths.max(), self.target_lengths.max()))
        if longest > self.rows_times_longest or longest >> _LENGTH_BITS:
            raise ValueError(f"a pair of {longest} tokens, and {self.rows_times_longest} in a micro-batch")

    @property
    def rows_times_longest(self) -> int:
        """Maximum size of a micro-batch, which is one update at most."""
        return min(self.tokens_per_update, self.tokens_per_microbatch)

    def updates_from(self, cursor: Cursor, update: int = 0) -> Iterator[tuple[GlobalBatch, Cursor]]:
        """Yield updates without end from a cursor on, each with the cursor after it.

        `update` is the number of updates before the cursor, for the mix: with a new stage a new epoch begins.
        """
        ends = self.mix.ends if self.mix else ()
        epoch, done = cursor.epoch, cursor.done
        if any(update - done < end <= update for end in ends):  # The cursor is at the end of a stage, within an epoch of it.
            epoch, done = epoch + 1, 0
        while True:
            updates = self.epoch(epoch, bisect_right(ends, update))
            for number in range(done, len(updates)):
                update += 1
                yield updates[number], Cursor(epoch, number + 1)
                if update in ends:
                    break
            epoch, done = epoch + 1, 0

    def epoch(self, epoch: int, stage: int = 0) -> list[GlobalBatch]:
        """Return all updates of one epoch (numbered from 0) in a stage of the mix; without one each pair is in exactly one of them."""
        random = np.random.default_rng([self.seed, epoch])
        microbatches = self._microbatches(random, stage)
        return list(self._fill(microbatches, random.permutation(len(microbatches.starts))))

    def largest(self) -> list[Indices]:
        """Return the micro-batches of the first epoch with most positions, with most tokens (for packing), and with the longest pair."""
        microbatches = self._microbatches(np.random.default_rng([self.seed, 0]))
        tokens = microbatches.source_tokens + microbatches.target_tokens
        numbers = int(microbatches.positions.argmax()), int(tokens.argmax()), len(microbatches.starts) - 1
        return [microbatches.pairs(number) for number in dict.fromkeys(numbers)]

    def _microbatches(self, random: np.random.Generator, stage: int | None = None) -> "_Microbatches":
        ordered = self._by_length(random, stage)
        source, target = self.source_lengths[ordered], self.target_lengths[ordered]
        starts = np.fromiter(microbatch_starts(np.maximum(source, target), self.rows_times_longest), np.int64)
        rows = np.diff(starts, append=len(ordered))
        positions = rows * (np.maximum.reduceat(source, starts).astype(np.int64) + np.maximum.reduceat(target, starts))
        source_tokens, target_tokens = (np.add.reduceat(side, starts, dtype=np.int64) for side in (source, target))
        return _Microbatches(ordered, starts, source_tokens, target_tokens, positions)

    def _by_length(self, random: np.random.Generator, stage: int | None) -> Indices:
        """Order a stage's pairs, or all, by their longer side, then the target, then the source; in random order where these are equal."""
        drawn = self.mix.drawn(stage, random) if self.mix and stage is not None else np.arange(len(self.source_lengths))
        shuffled = random.permutation(drawn)
        # One number for all three keys, because at 36 million pairs each array takes 288 MB.
        keys = np.maximum(self.source_lengths, self.target_lengths).astype(np.uint64)
        for lengths in (self.target_lengths, self.source_lengths):
            keys <<= np.uint64(_LENGTH_BITS)
            keys |= lengths.astype(np.uint64)
        return shuffled[np.argsort(keys[shuffled], kind="stable")]

    def _fill(self, microbatches: "_Microbatches", order: Indices) -> Iterator[GlobalBatch]:
        chosen: list[Indices] = []
        source_tokens = target_tokens = positions = 0
        for number in order.tolist():
            source, target = int(microbatches.source_tokens[number]), int(microbatches.target_tokens[number])
            if chosen and max(source_tokens + source, target_tokens + target) > self.tokens_per_update:
                yield GlobalBatch(tuple(chosen), source_tokens, target_tokens, positions)
                chosen, source_tokens, target_tokens, positions = [], 0, 0, 0
            chosen.append(microbatches.pairs(number))
            source_tokens += source
            target_tokens += target
            positions += int(microbatches.positions[number])
        if chosen:
            yield GlobalBatch(tuple(chosen), source_tokens, target_tokens, positions)


def microbatch_starts(longest: Lengths, rows_times_longest: int) -> Iterator[int]:
    """Yield the start of each micro-batch, for ascending lengths of the pairs' longer sides, none above the budget."""
    start = 0
    while start < len(longest):
        yield start
        # Lengths ascend, so rows * longest ascends, and bisection finds the last row that fits.
        window = longest[start : start + rows_times_longest // int(longest[start])]
        start += int(np.searchsorted(window * np.arange(1, len(window) + 1), rows_times_longest, side="right"))


def even_microbatch_starts(longest: Lengths, rows_times_longest: int, multiple: int) -> list[int]:
    """Return the starts of micro-batches for the smallest budget with which there are no more of them than with `rows_times_longest`.

    That number is rounded up to a multiple: devices with equal numbers of micro-batches have about equal work.
    """

    def starts(budget: int) -> list[int]:
        return list(microbatch_starts(longest, budget))

    most = -(-len(starts(rows_times_longest)) // multiple) * multiple
    budgets = range(int(longest[-1]), rows_times_longest)
    return starts(int(longest[-1]) + bisect_left(budgets, True, key=lambda budget: len(starts(budget)) <= most))


@dataclass(frozen=True)
class _Microbatches:
    """All micro-batches of an epoch: the start of each in the ordered pairs, its tokens, and its positions, padding included."""

    ordered: Indices
    starts: Indices
    source_tokens: Indices
    target_tokens: Indices
    positions: Indices

    def pairs(self, number: int) -> Indices:
        """Return the pair numbers of one micro-batch."""
        end = self.starts[number + 1] if number + 1 < len(self.starts) else len(self.ordered)
        return self.ordered[self.starts[number] : end]
