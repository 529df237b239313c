"""The state of a training on disk: whole, hashed and resumable to the bit, or not there."""

import logging
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from transformer_core.files import new_file, sha256_of

FORMAT = 2
LOCK = "lock"  # In a training's directory, held (transformer_core/files.py, `only_one`) by the process that writes there.
_KEEP_STATES = 2
_log = logging.getLogger(__name__)


def state_root() -> Path:
    """Where trainings keep their states, a directory each: $TRANSFORMER_STATE, or .state here."""
    return Path(os.environ.get("TRANSFORMER_STATE") or ".state")


def stopped_trainings(root: Path) -> list[Path]:
    """The directories under a root that hold a training's states or checkpoints, the one that was written last first."""
    found = {file.parent for file in root.glob("*/state-*.pt")} | {directory.parent for directory in root.glob("*/checkpoints")}
    return sorted(found, key=lambda directory: directory.stat().st_mtime, reverse=True)


class StateDirectory:
    """States and checkpoints of one training (one fingerprint), outside of DVC's outputs.

    `state-UPDATE.pt` holds everything a stopped run needs to go on, `state-UPDATE.sha256` its sum; the newest two are kept. A state
    without its sum, or with another one, is passed over for the one before. `checkpoints/` holds the weights of the last `keep` saves
    and of those that are asked for besides.

    Both are copied to the CPU's memory at once and written in the background, one after the other; `wait` returns when they are on disk.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._keep = keep
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state")
        self._writing: list[Future[None]] = []

    def save(self, update: int, state: dict[str, Any]) -> None:
        """Write the state after `update`; `state` holds tensors and plain values only."""
        self._start(self._write_state, update, state)

    def save_checkpoint(self, update: int, weights: dict[str, Tensor], best: Collection[int] = ()) -> None:
        """Write the weights after `update` and remove the oldest beyond `keep` but for those after the updates in `best`."""
        kept = frozenset(best)
        self._start(lambda number, value: self._write_checkpoint(number, value, kept), update, weights)

    def wait(self) -> None:
        """Return when all is written; raises what writing raised."""
        while self._writing:
            self._writing.pop(0).result()

    def states(self) -> Iterator[dict[str, Any]]:
        """The whole states, newest first. Tensors and plain values only: nothing in a file is executed."""
        for file in state_files(self.path):
            if is_whole(file):
                state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
                if state["format"] == FORMAT:
                    yield state
                    continue
            _log.warning("%s: damaged or of another format, passed over", file)

    def _start(self, write: Callable[[int, dict[str, Any]], None], update: int, value: dict[str, Any]) -> None:
        while len(self._writing) > 1:  # A disk slower than the training must not fill the memory with copies.
            self._writing.pop(0).result()
        self._writing.append(self._writer.submit(write, update, copied(value)))

    def _write_state(self, update: int, state: dict[str, Any]) -> None:
        _remove_torn(self.path)
        file = self.path / f"state-{update:08d}.pt"
        with new_file(file) as temporary:
            torch.save({"format": FORMAT, "update": update} | state, temporary)
        with new_file(file.with_suffix(".sha256")) as temporary:
            temporary.write_text(sha256_of(file), encoding="ascii")
        files = state_files(self.path)
        later = [old for old in files if update_of(old) > update]  # Damaged: the training went on from one before them.
        for old in later + files[len(later) + _KEEP_STATES :]:
            old.with_suffix(".sha256").unlink(missing_ok=True)
            old.unlink()

    def _write_checkpoint(self, update: int, weights: dict[str, Tensor], best: Collection[int]) -> None:
        _remove_torn(self.checkpoints)
        with new_file(self.checkpoints / f"update-{update:08d}.safetensors") as temporary:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary)
        for old in checkpoint_files(self.checkpoints)[: -self._keep]:
            if update_of(old) not in best:
                old.unlink()


def _remove_torn(directory: Path) -> None:
    """Remove what a killed process left half written; there is one writer, so nothing else is."""
    for file in directory.glob(".*.new"):
        file.unlink()


def copied(value: Any) -> Any:
    """A state's tensors, in dictionaries, lists and tuples, as copies on the CPU that later updates do not touch."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(copied(part) for part in value)
    return value


def state_files(directory: Path) -> list[Path]:
    """States in a training's directory, newest first, whole or not."""
    return sorted(directory.glob("state-*.pt"), reverse=True)


def is_whole(state: Path) -> bool:
    """Whether a state's file has the sum that was written after it."""
    record = state.with_suffix(".sha256")
    return record.exists() and record.read_bytes() == sha256_of(state).encode()


def checkpoint_files(directory: Path) -> list[Path]:
    """Checkpoints in a directory, oldest first."""
    return sorted(directory.glob("update-*.safetensors"))


def update_of(file: Path) -> int:
    """The update that a state or checkpoint was saved after, from its name."""
    return int(file.stem.partition("-")[2])


def load_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU."""
    return load_file(file)
