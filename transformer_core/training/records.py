"""Records of a training, the observer that receives them, and its progress."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer_core.corpus.tokens.batches import Cursor, Update


@dataclass(frozen=True)
class UpdateRecord:
    """Measures of the updates since the last record.

    Attributes:
        update: the last of them.
        epoch: its epoch, from 1.
        loss: label-smoothed, a target token.
        perplexity: without smoothing, dropout on.
        learning_rate: of the last update.
        gradient_norm: mean over the updates.
        tokens_per_second: target tokens of all devices.
        padding_share: of all positions, source and target.
        data_wait_share: of the time, spent waiting for batches on rank 0.
        mfu: share of the devices' best matrix rate that went into the model's products (model FLOPs utilisation).
        skipped: updates that were not finite.
        seconds: of training so far, validation included.
    """

    update: int
    epoch: int
    loss: float
    perplexity: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    padding_share: float
    data_wait_share: float
    mfu: float
    skipped: int
    seconds: float


class Observer:
    """Receives the records of a training on rank 0. This base class ignores them: the null observer of the other ranks."""

    def on_update(self, record: UpdateRecord) -> None:
        """Receive the record of the last updates."""

    def on_skipped(self, update: int, lines: Sequence[int]) -> None:
        """Receive an update that was not finite and skipped, and the lines, from 1, of its pairs in the text that was binarized."""

    def on_validation(self, update: int, seconds: float, scores: dict[str, float]) -> None:
        """Receive the scores of a validation after `seconds` of training."""

    def state(self) -> dict[str, Any]:
        """Return plain values that travel, opaque, in the training's state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up the values that `state` returned."""


@dataclass
class Progress:
    """Progress of a training: plain values that travel in the state.

    Attributes:
        update: updates done, skipped ones counted.
        epoch: of the plan, from 0.
        done_in_epoch: updates of this epoch that are done.
        target_tokens: seen so far.
        seconds: of training so far.
        skipped_in_row: updates that were not finite, with no good one after.
        went_back: whether weights were once taken back to an earlier state.
        scores: of each validation by its update, in the measure that chooses checkpoints.
    """

    update: int = 0
    epoch: int = 0
    done_in_epoch: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    skipped_in_row: int = 0
    went_back: bool = False
    scores: dict[int, float] = field(default_factory=dict)

    def count(self, update: Update, after: Cursor) -> None:
        """Count one more update; the next one is at `after`."""
        self.update += 1
        self.epoch, self.done_in_epoch = after.epoch, after.done
        self.target_tokens += update.target_tokens


@dataclass
class Interval:
    """Sums over the updates since the last record; skipped ones are only counted.

    Attributes:
        smoothed: loss with label smoothing, over target tokens.
        nll: negative log-likelihood, over target tokens.
        waited: seconds for batches.
        seconds: in all, validation left out.
    """

    updates: int = 0
    skipped: int = 0
    smoothed: float = 0.0
    nll: float = 0.0
    gradient_norms: float = 0.0
    source_tokens: int = 0
    target_tokens: int = 0
    positions: int = 0
    waited: float = 0.0
    seconds: float = 0.0

    def add(self, update: Update, smoothed: float, nll: float, gradient_norm: float) -> None:
        """Count in a good update."""
        self.updates += 1
        self.smoothed += smoothed
        self.nll += nll
        self.gradient_norms += gradient_norm
        self.source_tokens += update.source_tokens
        self.target_tokens += update.target_tokens
        self.positions += update.positions

    def record(
        self, progress: Progress, learning_rate: float, flops_a_token: tuple[int, int], machine_flops: float, seconds: float
    ) -> UpdateRecord:
        """Return the means, after `seconds` of training; `flops_a_token` of a source and of a target token."""
        of_source, of_target = flops_a_token
        flops = of_source * self.source_tokens + of_target * self.target_tokens
        return UpdateRecord(
            update=progress.update,
            epoch=progress.epoch + 1,
            loss=self.smoothed / self.target_tokens,
            perplexity=math.exp(min(self.nll / self.target_tokens, 100.0)),
            learning_rate=learning_rate,
            gradient_norm=self.gradient_norms / self.updates,
            tokens_per_second=self.target_tokens / self.seconds,
            padding_share=1 - (self.source_tokens + self.target_tokens) / self.positions,
            data_wait_share=self.waited / self.seconds,
            mfu=flops / self.seconds / machine_flops,
            skipped=self.skipped,
            seconds=seconds,
        )
