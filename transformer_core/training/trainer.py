"""The training loop: global batches in, weights, records and a resumable state out."""

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from transformer_core.config import Train
from transformer_core.corpus.batches import BatchPlan, Cursor, Update
from transformer_core.corpus.binary import BinarizedSplit
from transformer_core.errors import Interrupted
from transformer_core.models.translation import TranslationModel
from transformer_core.training.batch import Batch, make_batch
from transformer_core.training.checkpoint import StateDirectory
from transformer_core.training.devices import Devices, autocast
from transformer_core.training.loss import cross_entropy
from transformer_core.training.schedule import learning_rate

LOG_EVERY = 20


@dataclass(frozen=True)
class UpdateRecord:
    """What the last updates did: means over the target tokens since the record before; rates per second of wall time."""

    update: int
    epoch: int
    loss: float
    perplexity: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    padding_share: float
    seconds: float


class Observer(Protocol):
    """What watches a training on rank 0. Its state is plain values and travels, opaque, in the training's state."""

    def on_update(self, record: UpdateRecord) -> None: ...

    def on_validation(self, update: int, seconds: float, scores: dict[str, float]) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Nobody:
    """An observer that watches nothing: that of the ranks other than 0."""

    def on_update(self, record: UpdateRecord) -> None: ...

    def on_validation(self, update: int, seconds: float, scores: dict[str, float]) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass
class Progress:
    """How far a training is: updates done, the place in the plan, target tokens seen and seconds spent so far."""

    update: int = 0
    epoch: int = 0
    done_in_epoch: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    seconds_since_record: float = 0.0


class Trainer:
    """Trains a model on a split until `settings.updates`, or until asked to stop.

    A global batch is the same whatever the devices: ranks take its micro-batches in turn, each with a random stream seeded by (seed,
    update, micro-batch), gradients of summed token losses are divided by the global count of target tokens and added up once.

    Args:
        model: trained in place, on `devices.device`.
        split: the training pairs.
        settings: section `train`.
        devices: this process among all.
        directory: where states and checkpoints go.
        observer: told of records and validations, on rank 0 only.
        validate: scores the model as it is; every rank calls it at the same updates.
        stop_asked: whether this process was told to stop; all ranks then stop after the same update.
    """

    def __init__(
        self,
        model: TranslationModel,
        split: BinarizedSplit,
        settings: Train,
        devices: Devices,
        directory: StateDirectory,
        observer: Observer,
        validate: Callable[[], dict[str, float]],
        stop_asked: Callable[[], bool],
    ) -> None:
        self._model = model
        self._split = split
        self._settings = settings
        self._devices = devices
        self._directory = directory
        self._observer = observer
        self._validate = validate
        self._stop_asked = stop_asked
        self._plan = BatchPlan(
            split.source.lengths, split.target.lengths, settings.tokens_per_update, settings.tokens_per_microbatch, settings.seed
        )
        self._optimizer = torch.optim.Adam(
            model.parameters(), betas=(settings.adam_beta1, settings.adam_beta2), eps=settings.adam_epsilon, fused=True
        )
        self._sums = _Sums(model, devices.device)
        self._log_sums = torch.zeros_like(self._sums.totals)
        self._clock_began = self._record_began = time.monotonic()
        self.progress = Progress()

    def resume(self) -> bool:
        """Take up the newest whole state; whether there was one."""
        state = self._directory.load_newest()
        if state is None:
            return False
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self._log_sums.copy_(state["log_sums"])
        if self._devices.rank == 0:
            self._observer.restore(state["observer"])
        return True

    def run(self) -> Progress:
        """Train to the last update, from where `resume` left the trainer or from the start.

        Raises:
            Interrupted: stopped before the end, state saved.
        """
        self._model.train()
        self._clock_began = time.monotonic()
        self._record_began = self._clock_began - self.progress.seconds_since_record
        cursor = Cursor(self.progress.epoch, self.progress.done_in_epoch)
        updates = self._plan.updates_from(cursor)
        while self.progress.update < self._settings.updates:
            batch, cursor = next(updates)
            stop = self._update(batch)
            self._advance(batch, cursor)
            self._report()
            if stop and self.progress.update < self._settings.updates:
                self._save()
                raise Interrupted(f"training stopped after update {self.progress.update:,}, state saved")
        return self.progress

    def _update(self, batch: Update) -> bool:
        """One optimiser step on a global batch; returns whether some rank was asked to stop."""
        number = self.progress.update + 1
        self._sums.clear()
        for position in range(self._devices.rank, len(batch.microbatches), self._devices.world_size):
            seed_everything(self._settings.seed, number, position)
            self._add_gradients(make_batch(self._split, batch.microbatches[position], self._devices.device), batch.target_tokens)
        self._sums.totals[_STOP] = float(self._stop_asked())
        self._devices.sum_over_ranks(self._sums.everything)
        self._sums.totals[_GRADIENT_NORM] = self._sums.gradients.norm()
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(number)
        self._optimizer.step()
        self._log_sums += self._sums.totals
        return bool(self._sums.totals[_STOP] > 0) if self._devices.world_size > 1 else self._stop_asked()

    def _add_gradients(self, batch: Batch, tokens_of_update: int) -> None:
        with autocast(self._devices.device, self._settings.precision):
            decoded = self._model(batch.source, batch.source_mask, batch.shifted)
            loss = cross_entropy(
                decoded[batch.target_mask], self._model.output_weight, batch.target[batch.target_mask], self._settings.label_smoothing
            )
        (loss.smoothed / tokens_of_update).backward()
        target_tokens = batch.target_mask.sum()
        real = batch.source_mask.sum() + target_tokens
        positions = real.new_tensor(batch.source.numel() + batch.target.numel())
        with torch.no_grad():
            self._sums.totals[:_STOP] += torch.stack((loss.smoothed, loss.nll, target_tokens, real, positions)).to(self._sums.totals)

    def _advance(self, batch: Update, cursor: Cursor) -> None:
        self.progress.update += 1
        self.progress.epoch, self.progress.done_in_epoch = cursor.epoch, cursor.done
        self.progress.target_tokens += batch.target_tokens

    def _report(self) -> None:
        """Records, validation and saves that are due after this update."""
        update, last = self.progress.update, self._settings.updates
        if update % LOG_EVERY == 0 or update == last:
            self._record()
        if update % self._settings.validate_every == 0 or update == last:
            self._score()
        if update % self._settings.save_every == 0 or update == last:
            self._save_checkpoint()
            self._save()

    def _record(self) -> None:
        smoothed, nll, tokens, real, positions, _, gradient_norm = self._log_sums.tolist()
        now = time.monotonic()
        if self._devices.rank == 0:
            updates = self.progress.update % LOG_EVERY or LOG_EVERY
            self._observer.on_update(
                UpdateRecord(
                    update=self.progress.update,
                    epoch=self.progress.epoch + 1,
                    loss=smoothed / tokens,
                    perplexity=math.exp(min(nll / tokens, 100.0)),
                    learning_rate=self._learning_rate(self.progress.update),
                    gradient_norm=gradient_norm / updates,
                    tokens_per_second=tokens / (now - self._record_began),
                    padding_share=1 - real / positions,
                    seconds=self._seconds(),
                )
            )
        self._log_sums.zero_()
        self._record_began = now

    def _score(self) -> None:
        began = time.monotonic()
        scores = self._validate()
        self._model.train()
        if self._devices.rank == 0:
            self._observer.on_validation(self.progress.update, self._seconds(), scores)
        self._record_began += time.monotonic() - began

    def _save_checkpoint(self) -> None:
        if self._devices.rank == 0:
            self._directory.save_checkpoint(self.progress.update, self._model.state_dict())

    def _save(self) -> None:
        """Write the state on rank 0; the others wait, so that none goes on from a save that did not happen."""
        if self._devices.rank == 0:
            now = time.monotonic()
            self.progress.seconds, self.progress.seconds_since_record = self._seconds(), now - self._record_began
            self._clock_began = now
            self._directory.save(
                self.progress.update,
                {
                    "model": self._model.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                    "progress": asdict(self.progress),
                    "log_sums": self._log_sums,
                    "observer": self._observer.state(),
                },
            )
        self._devices.wait_for_all()

    def _learning_rate(self, update: int) -> float:
        return learning_rate(update, self._model.d_model, self._settings.warmup, self._settings.learning_rate)

    def _seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self._clock_began


# What an update sums besides gradients: smoothed loss, NLL, target tokens, real positions, positions; then whether to stop and the
# norm of the gradient.
_STOP, _GRADIENT_NORM, _TOTALS = 5, 6, 7


class _Sums:
    """Gradients of all parameters and the totals of an update in one flat buffer, so that one reduction adds up everything."""

    def __init__(self, model: TranslationModel, device: torch.device) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        size = sum(parameter.numel() for parameter in parameters)
        self.everything = torch.zeros(size + _TOTALS, dtype=parameters[0].dtype, device=device)
        self.gradients, self.totals = self.everything[:size], self.everything[size:]
        start = 0
        for parameter in parameters:
            parameter.grad = self.gradients[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def clear(self) -> None:
        """Make all sums zero, for the next update."""
        self.everything.zero_()


def seed_everything(seed: int, update: int, microbatch: int) -> None:
    """Seed torch's generators by (seed, update, micro-batch), so that dropout is the same whichever rank computes it."""
    digest = hashlib.blake2b(f"{seed}/{update}/{microbatch}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest))
