"""The training loop: updates, records, validation, and a state from which a stopped training resumes, on a CPU bit for bit."""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch

from transformer_core.config import Train
from transformer_core.corpus.tokens.batches import BatchPlan, Cursor
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.corpus.tokens.bpe_dropout import BpeDropout
from transformer_core.corpus.tokens.mixing import mix_of
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, is_out_of_memory, used_by_others
from transformer_core.models.architectures import flops_a_token
from transformer_core.models.ops.choice import prepare_for_training
from transformer_core.models.precision import precision_name, weights_dtype
from transformer_core.models.translation import TranslationModel
from transformer_core.processes import digest_of_code
from transformer_core.training.checkpoint import StateDirectory, best_updates, validations_since_best
from transformer_core.training.devices import Rank
from transformer_core.training.loader import MakeBatch, make_batch, make_packed_batch, make_twice, microbatch_of_each_shape, shares
from transformer_core.training.records import LogWindow, Observer, Progress
from transformer_core.training.update import GRADIENT_NORM, NLL, SKIPPED, SMOOTHED, STOP, Updater, weights_checksum

LOG_EVERY = 20  # Updates.
# The weights are restored again only after so many updates. A learning rate that is too high breaks a training sooner, and Adam's moments
# then hold little of the first return: nothing at the paper's beta2 of 0.98, and a third at 0.999.
_UPDATES_BETWEEN_RETURNS = 1000


@dataclass(eq=False)
class Trainer:
    """Trains a model on a split until `settings.updates`, until patience runs out, or until asked to stop.

    A global batch does not depend on the devices: ranks take its micro-batches in turn, and each micro-batch has a random stream seeded by
    (seed, update, micro-batch). The update itself is in update.py. Ranks that would compute differently are refused; all begin with the
    weights of rank 0, and compare checksums of their weights at each save.

    Raises `UserError` (78), on every rank: ranks have other precisions, kernels or versions of torch or of this package.
    """

    model: TranslationModel  # Trained in place, on `rank.device`.
    split: BinarizedSplit
    settings: Train
    rank: Rank
    directory: StateDirectory
    observer: Observer  # The null `Observer` on the ranks but 0.
    # Scores the model. Every rank calls it at the same updates and gets the same scores, or None if any rank was asked to stop.
    validate: Callable[[], dict[str, float] | None]
    stop_asked: Callable[[], bool]  # Whether this process was asked to stop; all ranks then stop after the same update.
    machine_flops: float = math.inf  # FLOP/s that all devices together reach in a matrix product; MFU is relative to it.
    bpe_dropout: BpeDropout | None = None  # Segments each update anew, with `settings.segments_anew`; None trains on the split as it is.

    def __post_init__(self) -> None:
        model, split, settings, rank = self.model, self.split, self.settings, self.rank
        lengths = split.source.lengths, split.target.lengths
        self._plan = BatchPlan(*lengths, settings.tokens_per_update, settings.tokens_per_microbatch, settings.seed, mix_of(settings, split))
        ops = prepare_for_training(model, rank.device, settings.precision, settings.passes)
        self._captured_budget = min(settings.tokens_per_update, settings.tokens_per_microbatch) if ops.captures else None
        packs = ops.packed is not None
        self._make_batch: MakeBatch = partial(make_packed_batch, budget=self._captured_budget) if packs else make_batch
        if settings.r_drop:
            self._make_batch = partial(make_twice, make=self._make_batch)
        computed = {
            "precision": precision_name(ops.low or weights_dtype(settings.precision)),
            "packed batches": packs,
            "CUDA graphs": ops.captures,
            "torch": torch.__version__,
            "CUDA": torch.version.cuda,
            "code of transformer_core": digest_of_code(),
        }
        rank.check_agreement(computed, "Take equal devices and equal versions on all of them, or name one train.precision.")
        self._updater = Updater(model, settings, rank, ops)
        of_source, of_target = flops_a_token(model)
        self._flops_a_token = settings.passes * of_source, settings.passes * of_target
        self._window = LogWindow()
        self._clock_began = self._window_began = time.monotonic()
        self._stopping = False
        self._saved = (-1, 0)  # Numbers of updates and validations in the state that was saved last.
        self.progress = Progress()

    def resume(self) -> bool:
        """Restore the newest undamaged state; return False if none exists. Every rank calls this.

        Raises `UserError` (78): the state is of a later update than `settings.updates`, or ranks have states of different updates.
        """
        if self.rank.index == 0:
            self.directory.claim()
        state = self._common("resume after", self.directory.states())
        if state is None:
            return False
        if state["progress"]["update"] > self.settings.updates:
            fault = f"train.updates: {self.settings.updates:,}, but this training is saved after update {state['progress']['update']:,}"
            raise configuration_error(fault, "Raise it, or start anew: transformer-core states --remove NAME")
        self._updater.restore(state)
        self.progress = Progress(**state["progress"])
        self._window = LogWindow(**state["interval"])
        self.observer.restore(state["observer"])
        return True

    def _common(self, purpose: str, states: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first of the states, or None. Raises `UserError` (78), on every rank: ranks have states of different updates."""
        state = next(states, None)
        found = {f"the update to {purpose}": 0 if state is None else state["progress"]["update"]}
        self.rank.check_agreement(found, "Set $TRANSFORMER_STATE on all machines to one folder of shared storage.")
        return state

    def check_memory(self, try_validation: Callable[[], object] = lambda: None) -> None:
        """Make a dry-run step on the largest micro-batches, to find out-of-memory before the first update.

        All ranks also capture CUDA graphs of all shapes of the epoch, so that no rank waits for another's captures later. `try_validation`
        uses as much memory as a validation. Raises `UserError`, on every rank: one of the devices lacks memory (78), or other processes
        use it (69).
        """
        self.model.train()
        tried = self._plan.largest()
        if self._captured_budget is not None:
            epoch = self._plan.epoch(self.progress.epoch, bisect_right(self.settings.stage_ends, self.progress.update))
            tried += microbatch_of_each_shape(epoch, self.split, self._captured_budget)
        lacking, trying = torch.zeros(3, device=self.rank.device), 0
        try:
            self._updater.dry_run(self.progress.update + 1, (self._make_batch(self.split.pairs(pairs)) for pairs in tried))
            trying = 1
            try_validation()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            lacking[trying] = 1
            lacking[2] = bool(used_by_others(error))
        self.rank.sum_over_ranks(lacking)
        of_training, of_validation, in_use = lacking.tolist()
        tokens, device = min(self.settings.tokens_per_microbatch, self.settings.tokens_per_update), self.rank.device.type
        if in_use:
            remedy = "Run it again when they have ended, or use other GPUs: nvidia-smi lists them."
            raise UserError("other processes use the memory of a GPU", remedy, ExitCode.UNAVAILABLE)
        if of_training:
            message = f"train.tokens_per_microbatch: the model and {tokens:,} tokens do not fit the memory of this {device}"
            raise configuration_error(message, "Lower it; train.tokens_per_update may stay.")
        if of_validation:
            message = f"a validation does not fit the memory of this {device} beside micro-batches of {tokens:,} tokens"
            raise configuration_error(message, "Lower train.tokens_per_microbatch; train.tokens_per_update may stay.")

    def run(self) -> Progress:
        """Train to the end, from the start or from the state that `resume` restored.

        Raises `Interrupted`: it was stopped before the end; the state is saved. `UserError`: 78, too many updates in a row were not finite;
        69, on every rank, ranks have other weights than rank 0.
        """
        for parameter in self.model.parameters():  # All ranks begin with the weights of rank 0, however they were built.
            self.rank.broadcast(parameter.detach())
        self.model.train()
        if self.rank.index == 0:
            self.directory.remove_after(self.progress.update)
        self._clock_began = time.monotonic()
        self._window_began = self._clock_began - self._window.seconds
        cursor = Cursor(self.progress.epoch, self.progress.done_in_epoch)
        updates = self._plan.updates_from(cursor, self.progress.update)
        with closing(shares(updates, self.split, self.rank, self._make_batch, self.bpe_dropout)) as coming:
            if self.progress.update:  # A kill may have prevented the validation and the checkpoint after the restored state.
                self._validate_and_keep()
            while not self._ended():
                began = time.monotonic()
                share = next(coming)
                self._window.waited += time.monotonic() - began
                self._updater.run(self.progress.update + 1, share, self.stop_asked)
                self.progress.update += 1
                self.progress.epoch, self.progress.done_in_epoch = share.after.epoch, share.after.done
                self.progress.target_tokens += share.update.target_tokens
                self.observer.on_progress(self.progress.update)
                self._read_totals(leave=1)
                if self.progress.skipped_in_row > self.settings.max_skipped:
                    self._go_back()
                if self._is_due(LOG_EVERY):
                    self._record()
                if self._is_due(self.settings.save_every):
                    self._read_totals(leave=0)
                    if not self.progress.skipped_in_row:  # `_go_back` needs a state from before a row of skipped updates.
                        self._save()  # Before the validation, so that no update is lost if that is interrupted.
                self._validate_and_keep()
                if self._stopping and not self._ended():
                    self._stop()
        self._wait_for_writes()
        self.progress.seconds = self._seconds()
        return self.progress

    def _ended(self) -> bool:
        begins = [0, *self.settings.stage_ends][-1]
        of_last_stage = {update: score for update, score in self.progress.scores.items() if update > begins}
        waited = validations_since_best(of_last_stage, self.settings.best_by)
        return self.progress.update >= self.settings.updates or 0 < self.settings.patience <= waited

    # Totals of updates.

    def _read_totals(self, leave: int) -> None:
        """Add up the totals of all updates except the last `leave`, and note whether any rank was asked to stop."""
        if self.rank.world_size == 1:
            self._stopping = self.stop_asked()
        for number, update, totals in self._updater.totals(leave):
            self._stopping = self._stopping or bool(totals[STOP] > 0)
            if totals[SKIPPED]:
                # More than `max_skipped` in a row are no longer expected: the training goes back.
                expected = self.progress.skipped_in_row < self.settings.max_skipped
                overflow = expected and self._updater.scales and math.isfinite(totals[SMOOTHED])
                self._window.skipped += 1
                self.progress.skipped_in_row += 1
                self.observer.on_skipped(number, sorted(self.split.lines(np.concatenate(update.microbatches))), overflow)
            else:
                self.progress.skipped_in_row = 0
                self._window.add(update, totals[SMOOTHED], totals[NLL], totals[GRADIENT_NORM])

    def _go_back(self) -> None:
        """Restore the weights of the newest state before the skipped updates, and continue with the next batches.

        Raises `UserError` (78): no such state exists, ranks have others, or weights were restored in the last `_UPDATES_BETWEEN_RETURNS`.
        """
        in_row = self.progress.skipped_in_row
        self._read_totals(leave=0)
        self._wait_for_writes()
        state = self._common("go back to", (state for state in self.directory.states() if not state["progress"]["skipped_in_row"]))
        since = self.progress.update - self.progress.went_back
        if state is None or (self.progress.went_back and since <= _UPDATES_BETWEEN_RETURNS):
            message = f"training: the loss or a gradient was not finite in {in_row} updates in a row before update {self.progress.update:,}"
            raise configuration_error(message, "Lower train.learning_rate_factor or lengthen train.warmup; the log names their file.")
        self._updater.restore(state)
        self.progress.went_back, self.progress.skipped_in_row = self.progress.update, 0

    # Records, saves and validations after an update.

    def _is_due(self, every: int) -> bool:
        return self.progress.update % every == 0 or self.progress.update == self.settings.updates

    def _record(self) -> None:
        self._read_totals(leave=0)
        now = time.monotonic()
        self._window.seconds = now - self._window_began
        if not self._window.updates:
            return
        rate = self._updater.learning_rate(self.progress.update)
        if self.rank.index == 0:
            self.directory.check_claim()
        self.observer.on_update(self._window.record(self.progress, rate, self._flops_a_token, self.machine_flops, self._seconds()))
        self._window, self._window_began = LogWindow(), now

    def _validate_and_keep(self) -> None:
        """Validate the model and write its weights as a checkpoint, each if due. Raises `Interrupted`: stopped meanwhile, state saved."""
        update = self.progress.update
        if update > 0 and update not in self.progress.scores and self._is_due(self.settings.validate_every):
            began = time.monotonic()
            scores = self.validate()
            self.model.train()
            if scores is None:
                self._stop()
            self.progress.scores[update] = scores[self.settings.best_by]
            self.observer.on_validation(update, self._seconds(), scores)
            self._window_began += time.monotonic() - began
        ended = self._ended()
        if ended:
            self._record()  # If patience has run out, updates after the last record are not recorded yet.
        if not (ended or update % self.settings.save_every == 0):
            return
        self._check_equal_weights()
        if self.rank.index == 0:
            # A training that goes on with more updates may have no validation at this one: it displaces none of the best.
            every = self.settings.validate_every
            lasting = {scored: score for scored, score in self.progress.scores.items() if scored < update or update % every == 0}
            best = best_updates(lasting, self.settings.best_by, self.settings.keep_best)
            self.directory.save_checkpoint(update, self.model.state_dict(), best)

    # States.

    def _check_equal_weights(self) -> None:
        """Raise a `UserError`, on every rank, if a rank's weights differ from another's, before they are saved.

        Exit code 69, so that the training is tried again: the last saved state is from before, and a device may have failed.
        """
        if self.rank.world_size > 1:
            found = {f"the checksum of the weights after update {self.progress.update:,}": weights_checksum(self.model)}
            remedy = "Run it again to go on from the last save. If it comes again, test the devices."
            self.rank.check_agreement(found, remedy, ExitCode.UNAVAILABLE)

    def _save(self, last: bool = False) -> None:
        """Start writing the state, on rank 0."""
        self._saved = self.progress.update, len(self.progress.scores)
        self._check_equal_weights()
        self._read_totals(leave=0)
        now = time.monotonic()
        self.progress.seconds, self._clock_began = self._seconds(), now
        self._window.seconds = now - self._window_began
        if self.rank.index == 0:
            state = {"progress": asdict(self.progress), "interval": asdict(self._window), "observer": self.observer.state()}
            self.directory.save(self.progress.update, self._updater.state() | state, last)

    def _wait_for_writes(self) -> None:
        """Wait until all writes are on disk, so that no rank relies on a save that failed."""
        if self.rank.index == 0:
            self.directory.wait()
        self.rank.wait_for_all()

    def _stop(self) -> NoReturn:
        if self._saved != (self.progress.update, len(self.progress.scores)):
            self._save(last=True)
        self._wait_for_writes()
        raise Interrupted(f"training stopped after update {self.progress.update:,}, state saved")

    def _seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self._clock_began
