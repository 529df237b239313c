"""States and checkpoints of a training on disk, and the mean of checkpoints (paper 6.1). States are written atomically and hashed."""

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._pytree import tree_map_only

from transformer_core.errors import ExitCode, UserError, is_of_machine, is_out_of_memory
from transformer_core.files import locked, new_file, repository, sha256_of, state_folder, write_text
from transformer_core.models.directory import check_finite, read_weights
from transformer_core.training.store import Store, StoreAway, store_of, this_process

FORMAT = 2
TRAINING_LOCK = "lock"  # File in a training's directory that the writing process locks (`locked` of transformer_core/files.py).
FINISHED = "finished"  # File there once the stage's outputs are written; it holds the MD5 of their metrics.json, as DVC records it.
STORED = "stored"  # File there once DVC has stored these outputs as well.
_WRITER = "writer"  # File there that names the process that writes the states.
_NAME_DIGITS = 16  # Of a training's directory: the first ones of its fingerprint.
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))
_MOST_REFUSED = 3  # Saves in a row that a full disk may refuse.
_SLICE = 1_000_000  # Numbers of a tensor that are averaged together.
_LESS_IS_BETTER = frozenset({"nll", "perplexity"})  # For the other measures, more is better.
_log = logging.getLogger(__name__)


def state_root(root: Path | None = None) -> Path:
    """Return the parent of the trainings' directories: `state_folder` in the repository, or in that at `root`."""
    return (root or repository()) / state_folder()


def state_of(fingerprint: str, root: Path | None = None) -> Path:
    """Return the directory of a training; `root` as in `state_root`."""
    return state_root(root) / fingerprint[:_NAME_DIGITS]


def keep_finished(fingerprint: str) -> None:
    """Keep the state of a finished training, whose outputs DVC has stored, for a later end, and remove the one that was kept before.

    Clones that share $TRANSFORMER_STATE keep one together. A training that is not finished, or that goes on, is left alone.
    """
    state = state_of(fingerprint)
    if not (state / FINISHED).exists():
        return
    with suppress(UserError):
        with locked(state / TRAINING_LOCK, "this training"):
            (state / STORED).touch()
        for one in {file.parent for file in state_root().glob(f"*/{STORED}")} - {state}:
            with suppress(UserError):
                remove_training(one)


def remove_training(state: Path) -> None:
    """Remove a training's directory. Raises `UserError` (69): a process trains in it.

    It is renamed under its lock, so that a training that begins meanwhile has a new one; NFS removes no folder with an open file.
    """
    with locked(state / TRAINING_LOCK, "this training"):
        if (store := store_of(state)) is not None:  # First: a training that is in the store alone would go on.
            store.remove()
        state.rename(state.with_name(f".{state.name}.{uuid4().hex[:8]}.old"))
    for removed in state.parent.glob(f".{state.name}.*.old"):  # Also what a killed process has left.
        shutil.rmtree(removed, ignore_errors=True)


def stopped_trainings(root: Path) -> list[Path]:
    """Return the directories under a root with a training's states or checkpoints, the most recently changed first.

    Other folders of the root, which the user chooses, may have files of such names: only those with a name as of `state_of` count.
    """
    found = {file.parent for file in root.glob("*/state-*.pt")} | {directory.parent for directory in root.glob("*/checkpoints")}
    ours = (directory for directory in found if re.fullmatch(f"[0-9a-f]{{{_NAME_DIGITS}}}", directory.name))
    return sorted(ours, key=lambda directory: directory.stat().st_mtime, reverse=True)


class _Write(NamedTuple):
    """A state, or the weights of a checkpoint, to be written; `best` are the updates whose checkpoints are kept, None for a state."""

    update: int
    value: dict[str, Any]
    best: Collection[int] | None


class StateDirectory:
    """States and checkpoints of one training (one fingerprint), outside of DVC's outputs.

    `state-UPDATE.pt` holds everything that a stopped run needs to resume, `state-UPDATE.sha256` its checksum; the newest two are kept. A
    state whose checksum is missing or differs is skipped, and the state before it is used. `checkpoints/` holds the weights of the last
    `keep` saves and of the best ones.

    Saving copies tensors to the CPU's memory at once; files are written in the background, one after the other. What a full disk refuses
    stays in memory, and is written with the next save. With a store, all files are copied to it after each save, and those that `beside`
    returns by their names in it; a store that is away gets them with the next save.
    """

    def __init__(self, path: Path, keep: int, store: Store | None = None, beside: Callable[[], dict[str, Path]] = lambda: {}) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._keep = keep
        self._store = store
        self._beside = beside
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self._writing: list[Future[None]] = []
        self._newest_state: Future[None] | None = None
        # Of the writer's thread: what is not on disk yet, and by update why saves since the last one were refused.
        self._left: list[_Write] = []
        self._refused: dict[int, str] = {}
        self._newest = 0
        self._failed = False
        self._claim = ""

    def claim(self) -> None:
        """Become the only writer. A writer before this one may have lost its lock without notice, as on NFS after a network failure."""
        if not self._claim:
            for torn in (*self.path.glob(".state-*.new"), *self.checkpoints.glob(".*.new")):  # Of a killed process.
                torn.unlink()
            self._claim = this_process()
            write_text(self.path / _WRITER, self._claim)
            if self._store is not None:
                self._store.claim()

    def check_claim(self) -> None:
        """Raise a `UserError` (69) if another process has become the writer since `claim`."""
        with suppress(FileNotFoundError):
            if self._claim and (found := (self.path / _WRITER).read_text(encoding="utf-8")) != self._claim:
                raise UserError(f"{self.path}: {found} trains this", "This process writes nothing more.", ExitCode.UNAVAILABLE)

    def remove_after(self, update: int) -> None:
        """Remove states and checkpoints of later updates: damaged states, and the checkpoints of the training that wrote them.

        The checkpoint of the update itself is removed too. It is written again if it is due, which it may not be any more if this was the
        end of a training that now has more updates.
        """
        for state in state_files(self.path):
            if update_of(state) > update:
                _remove_state(state)
        for checkpoint in checkpoint_files(self.checkpoints):
            if update_of(checkpoint) >= update:
                checkpoint.unlink()

    def save(self, update: int, state: dict[str, Any], last: bool = False) -> None:
        """Write the state after `update`; `state` holds tensors and plain values only.

        After the last state of a training that stops, which has little time, earlier ones are not needed: those that wait are dropped.
        """
        if last and self._newest_state is not None:
            self._newest_state.cancel()
        self._newest_state = self._start(update, state)

    def save_checkpoint(self, update: int, weights: dict[str, Tensor], best: Collection[int] = ()) -> None:
        """Write the weights after `update`; remove all checkpoints except the last `keep` and those of the updates in `best`."""
        self._start(update, weights, best)

    def wait(self) -> None:
        """Wait until all writes are on disk. An error in writing is raised here or in a later save.

        Raises `UserError` (69): the disk is full or the store is away, also after another try.
        """
        self._wait_for_writes(0)
        self._writer.submit(self._write).result()
        if self._refused and not self._failed:
            raise self._refusal("the last save has failed")

    def states(self) -> Iterator[dict[str, Any]]:
        """Yield the undamaged states, newest first. They are tensors and plain values; no code in a file is executed."""
        for file in state_files(self.path):
            if is_whole(file) and (state := _read_state(file)) is not None:
                yield state
            else:
                _log.warning("%s: damaged or of another format, passed over", file)

    def _start(self, update: int, value: dict[str, Any], best: Collection[int] | None = None) -> Future[None]:
        self._wait_for_writes(1)  # Bounds the copies in memory if the disk is slower than the training.
        copied = tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), value)
        self._writing.append(self._writer.submit(self._write, _Write(update, copied, best)))
        return self._writing[-1]

    def _wait_for_writes(self, leave: int) -> None:
        while len(self._writing) > leave:
            with suppress(CancelledError):
                self._writing.pop(0).result()

    def _write(self, *newest: _Write) -> None:
        """Write what is left and the newest, up to the first that a full disk refuses, then copy all to the store, which may be away.

        After any other error nothing more is written: a training that resumes from a later state would not write a missing checkpoint.
        """
        for write in newest:
            if write.best is None:  # It replaces states that the disk has refused.
                self._left = [other for other in self._left if other.best is not None]
            self._left.append(write)
            self._newest = write.update
        if self._failed:
            return
        try:
            while self._left:
                self.check_claim()
                update, value, best = self._left[0]
                if best is None:
                    self._write_state(update, value)
                else:
                    self._write_checkpoint(update, value, best)
                del self._left[0]
            if self._store is not None:
                self._store.push(self._files())
            self._refused.clear()
        except Exception as error:
            known = len(self._refused)
            if isinstance(error, StoreAway):
                cause = error.message
            elif any(words in str(error) for words in _FULL):
                cause = f"{self.path}: the disk is full"
            else:
                self._failed = True
                raise
            self._refused[self._newest] = cause
            self._failed = len(self._refused) == _MOST_REFUSED
            if self._failed:
                raise self._refusal(f"{_MOST_REFUSED} saves in a row have failed") from None
            if len(self._refused) > known:
                _log.warning("%s: the training goes on and tries again at its next save", cause)

    def _refusal(self, failed: str) -> UserError:
        cause = self._refused[max(self._refused)]
        return UserError(f"{cause}, {failed}", "Free space or reach the store, then run it again to resume.", ExitCode.UNAVAILABLE)

    def _files(self) -> dict[str, Path]:
        """Return what belongs into the store, by its name there; a state comes before its sum, and after what a resumed training needs."""
        files = {f"checkpoints/{file.name}": file for file in checkpoint_files(self.checkpoints)} | self._beside()
        states = (file for state in state_files(self.path) for file in (state, state.with_suffix(".sha256")))
        return files | {file.name: file for file in states if file.exists()}

    def _write_state(self, update: int, state: dict[str, Any]) -> None:
        file = self.path / f"state-{update:08d}.pt"
        with new_file(file) as temporary:
            try:
                with temporary.open("wb") as opened:
                    torch.save({"format": FORMAT, "update": update} | state, opened)
            except RuntimeError as error:  # torch's own, which does not give the reason.
                raise error.__context__ or error from None
            checksum = sha256_of(temporary)
        write_text(file.with_suffix(".sha256"), checksum)
        for old in state_files(self.path)[2:]:
            _remove_state(old)

    def _write_checkpoint(self, update: int, weights: dict[str, Tensor], best: Collection[int]) -> None:
        with new_file(self.checkpoints / f"update-{update:08d}.safetensors") as temporary:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary)
        for old in checkpoint_files(self.checkpoints)[: -self._keep]:
            if update_of(old) not in best:
                old.unlink()


def _remove_state(file: Path) -> None:
    file.with_suffix(".sha256").unlink(missing_ok=True)
    file.unlink()


def _read_state(file: Path) -> dict[str, Any] | None:
    """Return the state in a file, None if it is damaged or of another format. Raises OSError: the storage fails."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # Of many types for damaged files, also RuntimeError.
        if is_out_of_memory(error) or is_of_machine(error):
            raise
        return None
    return state if isinstance(state, dict) and state.get("format") == FORMAT else None


def state_files(directory: Path) -> list[Path]:
    """Return the state files in a training's directory, newest first, including damaged ones."""
    return sorted(directory.glob("state-*.pt"), reverse=True)


def is_whole(state: Path) -> bool:
    """Return whether a state file matches the checksum that was written after it."""
    record = state.with_suffix(".sha256")
    return record.exists() and record.read_bytes() == sha256_of(state).encode()


def checkpoint_files(directory: Path) -> list[Path]:
    """Return the checkpoints in a directory, oldest first."""
    return sorted(directory.glob("update-*.safetensors"))


def update_of(file: Path) -> int:
    """Return the update after which a state or checkpoint was saved, parsed from the file's name."""
    return int(file.stem.partition("-")[2])


def best_updates(scores: dict[int, float], measure: str, count: int) -> list[int]:
    """Return the `count` updates with the best validation scores, best first; equal scores in order of updates, NaN last."""
    sign = 1 if measure in _LESS_IS_BETTER else -1
    return sorted(scores, key=lambda update: (isnan(scores[update]), sign * scores[update], update))[:count]


def validations_since_best(scores: dict[int, float], measure: str) -> int:
    """Return the number of validations after the best one."""
    best = best_updates(scores, measure, 1)
    return sum(update > best[0] for update in scores) if best else 0


def average(files: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of checkpoints (paper 6.1), rounded to float32 once. A shared matrix is stored once per file.

    The values of each weight are sorted before they are summed in float64, so the result does not depend on the order of the files. Raises
    `UserError` (65): a checkpoint is damaged, holds values that are not finite, or is of another model than the first.
    """
    checkpoints = [read_weights(file) for file in files]
    shapes = [{name: weight.shape for name, weight in checkpoint.items()} for checkpoint in checkpoints]
    for checkpoint, shape, file in zip(checkpoints, shapes, files, strict=True):
        check_finite(checkpoint, file)
        if shape != shapes[0]:
            raise UserError(f"{file}: not of the same model as {files[0]}", "Remove it, or train again.")
    return {name: _mean([checkpoint[name] for checkpoint in checkpoints]) for name in checkpoints[0]}


def _mean(weights: Sequence[Tensor]) -> Tensor:
    """Return the mean of tensors of one shape, as `average` says, in slices: a number of each takes up to 24 bytes meanwhile."""
    slices = zip(*(weight.flatten().split(_SLICE) for weight in weights), strict=True)
    means = [torch.stack(numbers).double().sort(dim=0).values.mean(dim=0).to(torch.float32) for numbers in slices]
    return torch.cat(means).view(weights[0].shape)
