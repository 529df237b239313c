"""The job of a contender and its report: files in a folder, because each contender trains in processes of its own."""

import json
import pickle
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from transformer_core.presets import TransformerSize

JOB = "job.pickle"
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

    size: TransformerSize
    vocab_size: int
    tokens_per_update: int
    tokens_per_microbatch: int
    seed: int
    updates: Updates
    threads: int
    attention: str


def read_job(folder: Path) -> Job:
    """Return the job in a folder, which the benchmark itself has written."""
    job: Job = pickle.loads((folder / JOB).read_bytes())
    return job


class Training(NamedTuple):
    """One whole training: seconds, and target tokens, end tokens included and padding left out."""

    seconds: float
    target_tokens: int


def now(device: torch.device) -> float:
    """Return the seconds of a clock, read when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def train_and_report(folder: Path, model: torch.nn.Module, train: Callable[[], Training], precision: str, rank: int = 0) -> None:
    """Train for warm-up, train again, and write the report of this process into the folder; `precision` is that of matrix products."""
    train()
    report = {
        **train()._asdict(),
        "parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "peak_bytes": torch.cuda.max_memory_allocated() or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "precision": precision,
    }
    (folder / f"report-{rank}.json").write_text(json.dumps(report), encoding="utf-8")


def take_reports(folder: Path) -> list[dict[str, Any]]:
    """Read the reports in a folder and remove them."""
    files = sorted(folder.glob("report-*.json"))
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for file in files:
        file.unlink()
    return reports
