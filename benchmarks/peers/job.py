"""The job of a contender and its report: files in a folder, so that a contender can run in its own environment.

Of this repository a contender's process needs only this file, which needs only torch.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

# The paper's (5.3, 5.4). The learning rate, a usual one, does not change the speed.
LABEL_SMOOTHING = 0.1
ADAM_BETAS = (0.9, 0.98)
ADAM_EPSILON = 1e-9
LEARNING_RATE = 1e-4

_JOB = "job.json"
Updates = list[list[list[int]]]


@dataclass(frozen=True)
class Job:
    """A model and the updates to train it with; the pairs are beside it in the folder, as a binarized split called `train`.

    Attributes:
        tokens_per_update: most source tokens, and most target tokens, of an update.
        tokens_per_microbatch: most rows times longest side of one of our micro-batches.
        seed: of our batch plan.
        updates: pair numbers by update and micro-batch.
        threads: of each process.
        attention: the implementation, for a contender that has several.
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
    updates: Updates
    threads: int
    attention: str

    def write(self, folder: Path) -> None:
        """Write the job into a folder."""
        (folder / _JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Job":
        """Read the job in a folder."""
        return cls(**json.loads((folder / _JOB).read_text(encoding="utf-8")))


class Training(NamedTuple):
    """One whole training.

    Attributes:
        seconds: from the first update to the end of the last.
        target_tokens: end tokens included, padding left out.
        data_wait_share: share of the time spent waiting for batches; None if it is not known.
    """

    seconds: float
    target_tokens: int
    data_wait_share: float | None = None


class Memory:
    """Resident memory of this process and of `others`, given by their ids (Linux). Make it after all imports and before the model."""

    def __init__(self, *others: int) -> None:
        self._processes = ("self", *map(str, others))
        self.before_bytes = self._resident("VmRSS")

    def peak_bytes(self) -> int:
        """Return the peak so far; of several processes, the sum of their own peaks."""
        return self._resident("VmHWM")

    def _resident(self, key: str) -> int:
        lines = [line.split() for process in self._processes for line in Path(f"/proc/{process}/status").read_text().splitlines()]
        return sum(int(line[1]) * 1024 for line in lines if line[0] == f"{key}:")


def now(device: torch.device) -> float:
    """Return the seconds of a clock, read when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def train_and_report(
    folder: Path,
    job: Job,
    model: torch.nn.Module,
    memory: Memory,
    train: Callable[[Updates], Training],
    facts: Mapping[str, object],
    rank: int = 0,
) -> None:
    """Train for warm-up, train again, and write the report of this process into the folder.

    The report has the second training, `parameters` (each shared matrix once), `before_bytes` (memory after all imports and before the
    model was made), `peak_bytes`, and the given facts: `precision` of the matrix products and `versions` of the libraries.
    """
    train(job.updates)
    report = {
        **train(job.updates)._asdict(),
        "parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "before_bytes": memory.before_bytes,
        "peak_bytes": memory.peak_bytes(),
        **facts,
    }
    (folder / f"report-{rank}.json").write_text(json.dumps(report), encoding="utf-8")


def take_reports(folder: Path) -> list[dict[str, Any]]:
    """Read the reports in a folder and remove them."""
    files = sorted(folder.glob("report-*.json"))
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for file in files:
        file.unlink()
    return reports
