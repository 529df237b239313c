"""Which pairs make up which update: a pure function of corpus, seed, epoch and the two token budgets (never of the machine)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Update:
    """One global batch.

    Attributes:
        microbatches: pair numbers of each.
        source_tokens: of all pairs, end tokens included.
        target_tokens: the same.
        positions: of both sides, padding included.
    """

    microbatches: tuple[Indices, ...]
    source_tokens: int
    target_tokens: int
    positions: int


@dataclass(frozen=True)
class Cursor:
    """A place in the endless run of updates: so many of this epoch's updates are done."""

    epoch: int
    done: int


class BatchPlan:
    """Global batches of about `tokens_per_update` source and as many target tokens (paper 5.1), pairs of similar length together.

    Each epoch orders the pairs by length with ties in random order, cuts them into micro-batches, shuffles these and fills updates
    with whole ones. A micro-batch is bounded by its padded size, rows times the longest side; an update by real tokens on either side.

    Args:
        source_lengths: (pairs,) tokens of each source, end token included.
        target_lengths: (pairs,) the same of each target.
        tokens_per_update: most source tokens, and most target tokens, of an update.
        tokens_per_microbatch: most rows times longest side of a micro-batch; no pair may be longer than either budget.
        seed: of the shuffles.

    Raises:
        ValueError: a pair is longer than a budget.
    """

    def __init__(
        self,
        source_lengths: NDArray[np.int64],
        target_lengths: NDArray[np.int64],
        tokens_per_update: int,
        tokens_per_microbatch: int,
        seed: int,
    ) -> None:
        self._source_lengths = source_lengths
        self._target_lengths = target_lengths
        self._tokens_per_update = tokens_per_update
        self._rows_times_longest = min(tokens_per_update, tokens_per_microbatch)
        longest = max(source_lengths.max(), target_lengths.max())
        if longest > self._rows_times_longest:
            raise ValueError(f"a pair of {longest} tokens, and {self._rows_times_longest} in a micro-batch")
        self._seed = seed

    def updates_from(self, cursor: Cursor) -> Iterator[tuple[Update, Cursor]]:
        """Updates without end from a cursor on, each with the cursor that follows it."""
        epoch, done = cursor.epoch, cursor.done
        while True:
            updates = self.epoch(epoch)
            for number in range(done, len(updates)):
                yield updates[number], Cursor(epoch, number + 1)
            epoch, done = epoch + 1, 0

    def epoch(self, epoch: int) -> list[Update]:
        """All updates of one epoch (numbered from 0), each pair in exactly one of them."""
        random = np.random.default_rng([self._seed, epoch])
        microbatches = list(self._cut(self._by_length(random)))
        order = random.permutation(len(microbatches))
        return list(self._fill([microbatches[number] for number in order]))

    def largest(self) -> list[Indices]:
        """The micro-batches of the first epoch that take most memory: the one of most positions, the one with the longest pair."""
        microbatches = list(self._cut(self._by_length(np.random.default_rng([self._seed, 0]))))
        return [max(microbatches, key=self._positions), microbatches[-1]]

    def _by_length(self, random: np.random.Generator) -> Indices:
        shuffled = random.permutation(len(self._source_lengths))
        longest = np.maximum(self._source_lengths, self._target_lengths)
        keys = (self._source_lengths[shuffled], self._target_lengths[shuffled], longest[shuffled])
        return shuffled[np.lexsort(keys)]

    def _cut(self, ordered: Indices) -> Iterator[Indices]:
        longest = np.maximum(self._source_lengths[ordered], self._target_lengths[ordered])
        start = 0
        while start < len(ordered):
            # Lengths ascend, so rows * longest ascends too, and the last row that fits is found by bisection.
            window = longest[start : start + self._rows_times_longest // int(longest[start])]
            sizes = window * np.arange(1, len(window) + 1)
            rows = int(np.searchsorted(sizes, self._rows_times_longest, side="right"))
            yield ordered[start : start + rows]
            start += rows

    def _fill(self, microbatches: list[Indices]) -> Iterator[Update]:
        chosen: list[Indices] = []
        source_tokens = target_tokens = positions = 0
        for microbatch in microbatches:
            source = int(self._source_lengths[microbatch].sum())
            target = int(self._target_lengths[microbatch].sum())
            if chosen and max(source_tokens + source, target_tokens + target) > self._tokens_per_update:
                yield Update(tuple(chosen), source_tokens, target_tokens, positions)
                chosen, source_tokens, target_tokens, positions = [], 0, 0, 0
            chosen.append(microbatch)
            source_tokens += source
            target_tokens += target
            positions += self._positions(microbatch)
        if chosen:
            yield Update(tuple(chosen), source_tokens, target_tokens, positions)

    def _positions(self, microbatch: Indices) -> int:
        return len(microbatch) * int(self._source_lengths[microbatch].max() + self._target_lengths[microbatch].max())
