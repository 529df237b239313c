"""What a contender is told and what it reports: files in a folder, so that it may live in an environment of its own.

Of this repository a contender's process needs this file alone, and for it torch alone.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

# The paper's (5.3, 5.4). The learning rate, a usual one, changes no speed.
LABEL_SMOOTHING = 0.1
ADAM_BETAS = (0.9, 0.98)
ADAM_EPSILON = 1e-9
LEARNING_RATE = 1e-4

_JOB = "job.json"


@dataclass(frozen=True)
class Job:
    """A model and the updates to train it with; the pairs stand beside it as a binarized split called `train`.

    Attributes:
        tokens_per_update: most source tokens, and most target tokens, of an update.
        tokens_per_microbatch: most rows times longest side of one of our micro-batches.
        seed: of our batch plan.
        updates: pair numbers by update and micro-batch.
        warm_up: how many of the updates, from the first on, are trained with before the clock runs.
        threads: of each process, on a CPU.
        attention: the implementation, where a contender has several.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    dropout: float
    vocab_size: int
    tokens_per_update: int
    tokens_per_microbatch: int
    seed: int
    updates: list[list[list[int]]]
    warm_up: int
    threads: int
    attention: str

    def write(self, folder: Path) -> None:
        """Leave the job in a folder."""
        (folder / _JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Job":
        """The job in a folder."""
        return cls(**json.loads((folder / _JOB).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Report:
    """What one process of a contender has measured.

    Attributes:
        seconds: from the first measured update to the end of the last.
        target_tokens: of the measured updates, end tokens included, padding left out.
        parameters: those trained, each shared matrix once.
        precision: of the matrix products.
        versions: of the libraries, by name.
        before_bytes: memory after all imports and before the model was made.
        peak_bytes: the most memory that was held.
        data_wait_share: of the time, spent waiting for batches; None where that is not known.
    """

    seconds: float
    target_tokens: int
    parameters: int
    precision: str
    versions: dict[str, str]
    before_bytes: int
    peak_bytes: int
    data_wait_share: float | None = None

    def write(self, folder: Path, rank: int = 0) -> None:
        """Leave the report in a folder."""
        (folder / f"report-{rank}.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def take_all(cls, folder: Path) -> list["Report"]:
        """The reports in a folder, which are then no longer there."""
        files = sorted(folder.glob("report-*.json"))
        reports = [cls(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
        for file in files:
            file.unlink()
        return reports


class Memory:
    """What a process holds: resident on a CPU (Linux), in tensors on a GPU. Make it after all imports and before the model.

    Args:
        device: where the model is trained.
        others: ids of processes to count along.
    """

    def __init__(self, device: torch.device, others: tuple[int, ...] = ()) -> None:
        self._device = device
        self._processes = ("self", *map(str, others))
        self.before_bytes = torch.cuda.memory_allocated(device) if device.type == "cuda" else self._resident("VmRSS")

    def peak_bytes(self) -> int:
        """The most so far; of several processes, each one's own most."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else self._resident("VmHWM")

    def _resident(self, key: str) -> int:
        lines = [line.split() for process in self._processes for line in Path(f"/proc/{process}/status").read_text().splitlines()]
        return sum(int(line[1]) * 1024 for line in lines if line[0] == f"{key}:")


def now(device: torch.device) -> float:
    """Seconds of a clock, read when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def trained_parameters(model: torch.nn.Module) -> int:
    """How many numbers are trained, each shared matrix once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
