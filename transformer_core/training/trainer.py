"""The training loop: global batches in, weights, records and a resumable state out."""

import hashlib
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from transformer_core.config import Train
from transformer_core.corpus.batches import BatchPlan, Cursor, Update
from transformer_core.corpus.binary import BinarizedSplit
from transformer_core.corpus.bpe_dropout import BpeDropout
from transformer_core.errors import Interrupted, configuration_error
from transformer_core.models.translation import TranslationModel
from transformer_core.training.batch import Batch, make_batch
from transformer_core.training.checkpoint import StateDirectory
from transformer_core.training.devices import Devices, autocast, loss_scaler
from transformer_core.training.loader import Share, shares
from transformer_core.training.loss import cross_entropy
from transformer_core.training.records import Interval, Observer, Progress
from transformer_core.training.schedule import cooled, learning_rate
from transformer_core.training.selection import best_updates, validations_since_best
from transformer_core.training.totals import GRADIENT_NORM, NLL, SKIPPED, SMOOTHED, STOP, OnTheWay, Sums
from transformer_core.training.utilisation import flops_a_token

LOG_EVERY = 20


class Trainer:
    """Trains a model on a split until `settings.updates`, until validations have not improved for long, or until asked to stop.

    A global batch is the same whatever the devices: ranks take its micro-batches in turn, each with a random stream seeded by (seed,
    update, micro-batch), gradients of summed token losses are divided by the global count of target tokens and added up once.

    Args:
        model: trained in place, on `devices.device`.
        split: the training pairs.
        settings: section `train`.
        devices: this process among all.
        directory: where states and checkpoints go.
        observer: told of records and validations, on rank 0 only.
        validate: scores the model as it is; every rank calls it at the same updates and gets the same: None where one was told to stop.
        stop_asked: whether this process was told to stop; all ranks then stop after the same update.
        machine_flops: FLOP/s that all devices together reach in a matrix product: what MFU is a share of.
        bpe_dropout: segments each update anew; None trains on the split as it is.

    Raises:
        ValueError: `bpe_dropout` is there and `settings.bpe_dropout` is 0, or the other way round.
    """

    def __init__(
        self,
        model: TranslationModel,
        split: BinarizedSplit,
        settings: Train,
        devices: Devices,
        directory: StateDirectory,
        observer: Observer,
        validate: Callable[[], dict[str, float] | None],
        stop_asked: Callable[[], bool],
        machine_flops: float = math.inf,
        bpe_dropout: BpeDropout | None = None,
    ) -> None:
        if (bpe_dropout is None) != (settings.bpe_dropout == 0):
            raise ValueError(f"settings.bpe_dropout is {settings.bpe_dropout:g}, and bpe_dropout is {bpe_dropout}")
        self._model = model
        self._split = split
        self._settings = settings
        self._devices = devices
        self._directory = directory
        self._observer = observer
        self._validate = validate
        self._stop_asked = stop_asked
        self._machine_flops = machine_flops
        self._bpe_dropout = bpe_dropout
        self._plan = BatchPlan(
            split.source.lengths, split.target.lengths, settings.tokens_per_update, settings.tokens_per_microbatch, settings.seed
        )
        self._optimizer = torch.optim.Adam(
            model.parameters(), betas=(settings.adam_beta1, settings.adam_beta2), eps=settings.adam_epsilon, fused=True
        )
        self._scaler = loss_scaler(devices.device, settings.precision)
        self._sums = Sums(model, devices.device)
        self._on_the_way = OnTheWay(devices.device)
        self._flops_a_token = flops_a_token(model)
        self._interval = Interval()
        self._clock_began = self._interval_began = time.monotonic()
        self._stopping = False
        self.progress = Progress()

    def resume(self) -> bool:
        """Take up the newest whole state; whether there was one."""
        state = next(self._directory.states(), None)
        if state is None:
            return False
        self._load_weights(state)
        self.progress = Progress(**state["progress"])
        self._interval = Interval(**state["interval"])
        if self._devices.rank == 0:
            self._observer.restore(state["observer"])
        return True

    def try_largest(self) -> None:
        """A step of nothing over the largest micro-batches, before the first update or one to go on with: memory runs out now or never.

        Raises:
            UserError: exit code 78, on every rank; the largest micro-batch does not fit some device's memory.
        """
        self._model.train()
        lacking = torch.zeros((), device=self._devices.device)
        try:
            for pairs in self._plan.largest():
                self._add_gradients(make_batch(self._split.pairs(pairs)).to(self._devices.device), tokens_of_update=1)
            self._step(self.progress.update + 1, broken=torch.ones_like(lacking))
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            lacking.fill_(1)
        self._devices.sum_over_ranks(lacking)
        if lacking.item():
            tokens = min(self._settings.tokens_per_microbatch, self._settings.tokens_per_update)
            message = (
                f"train.tokens_per_microbatch: the model and {tokens:,} tokens do not fit the memory of this {self._devices.device.type}"
            )
            raise configuration_error(message, "Lower it; train.tokens_per_update may stay.")

    def run(self) -> Progress:
        """Train to the end, from where `resume` left the trainer or from the start.

        Raises:
            Interrupted: stopped before the end, state saved.
            UserError: exit code 78; too many updates in a row were not finite.
        """
        self._model.train()
        self._clock_began = time.monotonic()
        self._interval_began = self._clock_began - self._interval.seconds
        cursor = Cursor(self.progress.epoch, self.progress.done_in_epoch)
        with closing(shares(self._plan, self._split, self._devices, cursor, self._bpe_dropout)) as coming:
            if self._validation_is_due():  # The state is saved before a validation, which was then interrupted.
                self._validate_and_keep()
            while not self._ended():
                began = time.monotonic()
                share = next(coming)
                self._interval.waited += time.monotonic() - began
                self._update(share)
                self._read(leave=1)
                if self.progress.skipped_in_row > self._settings.max_skipped:
                    self._go_back()
                self._report()
                if self._stopping and not self._ended():
                    self._save()
                    self._stop()
        self._written()
        self.progress.seconds = self._seconds()
        return self.progress

    def _ended(self) -> bool:
        patience = self._settings.patience
        waited = validations_since_best(self.progress.scores, self._settings.best_by)
        return self.progress.update >= self._settings.updates or 0 < patience <= waited

    def _update(self, share: Share) -> None:
        """One optimiser step on a global batch, which a loss or gradient that is not finite makes a step of nothing.

        Nothing here waits for the device: what the update came to is read after the next one.
        """
        number = self.progress.update + 1
        self._sums.clear()
        for position, batch in share.microbatches.items():
            seed_everything(self._settings.seed, number, position)
            self._add_gradients(batch.to(self._devices.device), share.update.target_tokens)
        totals = self._sums.totals
        totals[STOP].fill_(float(self._stop_asked()))
        self._devices.sum_over_ranks(self._sums.everything)
        self._scaler.unscale_(self._optimizer)
        totals[GRADIENT_NORM] = self._sums.gradients.norm()
        broken = ~totals.isfinite().all()
        totals[SKIPPED] = broken
        self._step(number, broken)
        self._scaler.update()
        self._on_the_way.send(number, share.update, totals)
        self.progress.update = number
        self.progress.epoch, self.progress.done_in_epoch = share.after.epoch, share.after.done
        self.progress.target_tokens += share.update.target_tokens

    def _add_gradients(self, batch: Batch, tokens_of_update: int) -> None:
        with autocast(self._devices.device, self._settings.precision):
            decoded = self._model(batch.source, batch.source_mask, batch.shifted)
            hidden = decoded.flatten(0, 1).index_select(0, batch.places)
            loss = cross_entropy(hidden, self._model.output_weight, batch.truth, self._settings.label_smoothing)
        self._scaler.scale(loss.smoothed / tokens_of_update).backward()
        with torch.no_grad():
            self._sums.totals[SMOOTHED] += loss.smoothed
            self._sums.totals[NLL] += loss.nll

    def _step(self, number: int, broken: Tensor) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(number)
        # What a gradient scaler sets: Adam's fused kernel then leaves weights, moments and its count of steps alone.
        self._optimizer.found_inf = broken.float()  # type: ignore[attr-defined]
        self._optimizer.step()

    def _read(self, leave: int) -> None:
        """Take in what updates came to, the last `leave` left for later, and whether some rank was asked to stop."""
        if self._devices.world_size == 1:
            self._stopping = self._stop_asked()
        for number, update, totals in self._on_the_way.arrived(leave):
            self._stopping = self._stopping or bool(totals[STOP] > 0)
            if totals[SKIPPED]:
                self._skip(number, update)
            else:
                self.progress.skipped_in_row = 0
                self._interval.add(update, totals[SMOOTHED], totals[NLL], totals[GRADIENT_NORM])

    def _skip(self, number: int, update: Update) -> None:
        self._interval.skipped += 1
        self.progress.skipped_in_row += 1
        if self._devices.rank == 0:
            pairs = np.concatenate(update.microbatches)
            self._observer.on_skipped(number, sorted(self._split.lines[pairs].tolist()))

    def _go_back(self) -> None:
        """Take the weights back to the newest state from before the row of skipped updates, once, and go on with the next batches.

        Raises:
            UserError: exit code 78; there is no such state, or this is the second time.
        """
        in_row = self.progress.skipped_in_row
        self._read(leave=0)
        self._written()
        state = next((state for state in self._directory.states() if not state["progress"]["skipped_in_row"]), None)
        if state is None or self.progress.went_back:
            message = f"training: the loss or a gradient was not finite in {in_row} updates in a row before update {self.progress.update:,}"
            raise configuration_error(message, "Lower train.learning_rate_factor or lengthen train.warmup; skipped.csv names the lines.")
        self._load_weights(state)
        self.progress.went_back, self.progress.skipped_in_row = True, 0

    def _report(self) -> None:
        """Records, saves and validation that are due after this update.

        The state is saved first, so that a stop or a kill during a validation costs no update.
        """
        update, settings = self.progress.update, self._settings
        if update % LOG_EVERY == 0 or update == settings.updates:
            self._record()
        if self._save_is_due():
            self._save()
        self._validate_and_keep()

    def _save_is_due(self) -> bool:
        """A state that `_go_back` can take must be from before any skipped update of a row."""
        update, settings = self.progress.update, self._settings
        if update % settings.save_every and update != settings.updates:
            return False
        self._read(leave=0)
        return not self.progress.skipped_in_row

    def _validation_is_due(self) -> bool:
        update, settings = self.progress.update, self._settings
        return update not in self.progress.scores and update > 0 and (update % settings.validate_every == 0 or update == settings.updates)

    def _validate_and_keep(self) -> None:
        """Score the model where that is due, and keep its weights as a checkpoint.

        Raises:
            Interrupted: stopped during the validation, state saved.
        """
        if self._validation_is_due():
            self._score()
        ended = self._ended()
        if ended:
            self._record()  # Of what came after the last record, where patience has run out.
        if ended or self.progress.update % self._settings.save_every == 0:
            self._save_checkpoint()

    def _record(self) -> None:
        self._read(leave=0)
        now = time.monotonic()
        self._interval.seconds = now - self._interval_began
        if not self._interval.updates:
            return
        if self._devices.rank == 0:
            self._observer.on_update(
                self._interval.record(
                    self.progress,
                    learning_rate=self._learning_rate(self.progress.update),
                    flops_a_token=self._flops_a_token,
                    machine_flops=self._machine_flops,
                    seconds=self._seconds(),
                )
            )
        self._interval, self._interval_began = Interval(), now

    def _score(self) -> None:
        began = time.monotonic()
        scores = self._validate()
        self._model.train()
        if scores is None:
            if not self._save_is_due():  # Else it was saved before the validation.
                self._save()
            self._stop()
        self.progress.scores[self.progress.update] = scores[self._settings.best_by]
        if self._devices.rank == 0:
            self._observer.on_validation(self.progress.update, self._seconds(), scores)
        self._interval_began += time.monotonic() - began

    def _save_checkpoint(self) -> None:
        if self._devices.rank == 0:
            best = best_updates(self.progress.scores, self._settings.best_by, self._settings.keep_best)
            self._directory.save_checkpoint(self.progress.update, self._model.state_dict(), best)

    def _save(self) -> None:
        """Begin to write the state, on rank 0."""
        self._read(leave=0)
        now = time.monotonic()
        self.progress.seconds, self._clock_began = self._seconds(), now
        self._interval.seconds = now - self._interval_began
        if self._devices.rank == 0:
            self._directory.save(
                self.progress.update,
                {
                    "model": self._model.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                    "scaler": self._scaler.state_dict(),
                    "progress": asdict(self.progress),
                    "interval": asdict(self._interval),
                    "observer": self._observer.state(),
                },
            )

    def _written(self) -> None:
        """Return when all that was saved is on disk, so that no rank goes on from a save that did not happen."""
        if self._devices.rank == 0:
            self._directory.wait()
        self._devices.wait_for_all()

    def _stop(self) -> NoReturn:
        self._written()
        raise Interrupted(f"training stopped after update {self.progress.update:,}, state saved")

    def _load_weights(self, state: dict[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # Empty where the state comes from a machine that needs none.
            self._scaler.load_state_dict(state["scaler"])

    def _learning_rate(self, update: int) -> float:
        settings = self._settings
        rate = learning_rate(update, self._model.d_model, settings.warmup, settings.learning_rate_factor)
        return rate * cooled(update, settings.updates, settings.cooldown)

    def _seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self._clock_began


def seed_everything(seed: int, update: int, microbatch: int) -> None:
    """Seed torch's generators by (seed, update, micro-batch), so that dropout is the same whichever rank computes it."""
    digest = hashlib.blake2b(f"{seed}/{update}/{microbatch}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest))


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in str(error)
