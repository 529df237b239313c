"""The state of a training on disk: whole, hashed and resumable to the bit, or not there."""

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from transformer_core.files import new_file, sha256_of

FORMAT = 1
_KEEP_STATES = 2
_log = logging.getLogger(__name__)


class StateDirectory:
    """States and checkpoints of one training (one fingerprint), outside of DVC's outputs.

    `state-UPDATE.pt` holds everything a stopped run needs to go on, `state-UPDATE.sha256` its sum; the newest two are kept. A state
    without its sum, or with another one, is passed over for the one before. `checkpoints/` holds the weights of the last `keep` saves.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self._keep = keep

    def save(self, update: int, state: dict[str, Any]) -> None:
        """Write the state after `update`; `state` holds tensors and plain values only."""
        file = self.path / f"state-{update:08d}.pt"
        with new_file(file) as temporary:
            torch.save({"format": FORMAT, "update": update} | state, temporary)
        with new_file(file.with_suffix(".sha256")) as temporary:
            temporary.write_text(sha256_of(file), encoding="ascii")
        for old in self._states()[_KEEP_STATES:]:
            old.with_suffix(".sha256").unlink(missing_ok=True)
            old.unlink()

    def load_newest(self) -> dict[str, Any] | None:
        """The newest whole state, or None. Tensors and plain values only: nothing in the file is executed."""
        for file in self._states():
            if self._is_whole(file):
                state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
                if state["format"] == FORMAT:
                    return state
            _log.warning("%s: damaged or of another format, passed over", file)
        return None

    def save_checkpoint(self, update: int, weights: dict[str, Tensor]) -> None:
        """Write the weights after `update` and remove the oldest beyond `keep`."""
        with new_file(self.checkpoints / f"update-{update:08d}.safetensors") as temporary:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, temporary)
        for old in checkpoint_files(self.checkpoints)[: -self._keep]:
            old.unlink()

    def _states(self) -> list[Path]:
        return sorted(self.path.glob("state-*.pt"), reverse=True)

    @staticmethod
    def _is_whole(file: Path) -> bool:
        record = file.with_suffix(".sha256")
        return record.exists() and record.read_bytes() == sha256_of(file).encode()


def checkpoint_files(directory: Path) -> list[Path]:
    """Checkpoints in a directory, oldest first."""
    return sorted(directory.glob("update-*.safetensors"))


def load_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU."""
    return load_file(file)
