"""Records of a training, the observer that receives them, and its progress."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer_core.corpus.tokens.batches import GlobalBatch
from transformer_core.training.loss import perplexity


@dataclass(frozen=True)
class UpdateRecord:
    """Measures of the updates since the last record."""

    update: int  # Number of the last update.
    epoch: int  # Of the last update, from 1.
    loss: float  # Label-smoothed, per target token.
    perplexity: float  # Without label smoothing, with dropout.
    learning_rate: float  # Of the last update.
    gradient_norm: float  # Mean over the updates.
    tokens_per_second: float  # Target tokens of all devices together.
    padding_share: float  # Share of padding in all positions, source and target.
    data_wait_share: float  # Share of the time that rank 0 waited for batches.
    mfu: float  # FLOP/s of the model's products as a share of the devices' best matrix rate (model FLOPs utilisation).
    skipped: int  # Number of updates that were not finite.
    seconds: float  # Of training so far, validation included.


class Observer:
    """Receives the records of a training. This base class ignores them: it is the null observer, which all ranks but 0 have."""

    def on_progress(self, update: int) -> None:
        """Receive the number of each update, once it is computed."""

    def on_update(self, record: UpdateRecord) -> None:
        """Receive the record of the updates since the last one."""

    def on_skipped(self, update: int, lines: Sequence[int], overflow: bool) -> None:
        """Receive an update that was skipped because it was not finite, and the lines (from 1) of its pairs in the binarized text.

        `overflow`: in fp16, where gradients overflow now and then because the loss is scaled, the loss itself was finite, and no more than
        `max_skipped` updates in a row were skipped.
        """

    def on_validation(self, update: int, seconds: float, scores: dict[str, float]) -> None:
        """Receive the scores of a validation after `seconds` of training."""

    def state(self) -> dict[str, Any]:
        """Return plain values to be saved in the training's state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the values that `state` returned."""


@dataclass
class Progress:
    """Progress of a training: plain values that are part of its state."""

    update: int = 0  # Number of updates done, including skipped ones.
    epoch: int = 0  # Of the batch plan, from 0.
    done_in_epoch: int = 0  # Number of updates done in this epoch.
    target_tokens: int = 0  # In the updates done.
    seconds: float = 0.0  # Of training at the last save or at the end.
    skipped_in_row: int = 0  # Number of skipped updates since the last finite one.
    went_back: int = 0  # The update after which the weights were last restored because of skipped updates, 0 for none.
    scores: dict[int, float] = field(default_factory=dict)  # Of each validation by its update, in the measure `train.best_by`.


@dataclass
class LogWindow:
    """Sums over the updates since the last record, without skipped ones, which are only counted."""

    updates: int = 0  # That were not skipped.
    skipped: int = 0
    smoothed: float = 0.0  # Label-smoothed loss, summed over target tokens.
    nll: float = 0.0  # Negative log-likelihood, summed over target tokens.
    gradient_norms: float = 0.0
    source_tokens: int = 0
    target_tokens: int = 0
    positions: int = 0
    waited: float = 0.0  # Seconds of waiting for batches.
    seconds: float = 0.0  # In all, without validation.

    def add(self, update: GlobalBatch, smoothed: float, nll: float, gradient_norm: float) -> None:
        """Add an update that was not skipped."""
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
        """Return the record of the window, after `seconds` of training; `flops_a_token` is per source and per target token."""
        of_source, of_target = flops_a_token
        flops = of_source * self.source_tokens + of_target * self.target_tokens
        return UpdateRecord(
            update=progress.update,
            epoch=progress.epoch + 1,
            loss=self.smoothed / self.target_tokens,
            perplexity=perplexity(self.nll / self.target_tokens),
            learning_rate=learning_rate,
            gradient_norm=self.gradient_norms / self.updates,
            tokens_per_second=self.target_tokens / self.seconds,
            padding_share=1 - (self.source_tokens + self.target_tokens) / self.positions,
            data_wait_share=self.waited / self.seconds,
            mfu=flops / self.seconds / machine_flops,
            skipped=self.skipped,
            seconds=seconds,
        )
