"""The job of a contender and its report: files in a folder, because each contender trains in processes of its own."""

import json
import pickle
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from transformer_core.presets import TransformerSize

JOB = "job.pickle"
Updates = list[list[list[int]]]


class Job(NamedTuple):
    """A model and the updates to train it with; the pairs are beside it in the folder, as a binarized split called `train`."""

    size: TransformerSize
    vocab_size: int
    tokens_per_update: int  # Most source tokens, and most target tokens, of an update.
    tokens_per_microbatch: int  # Most rows times longest side of one of our micro-batches.
    seed: int  # Of our batch plan.
    updates: Updates  # Pair numbers by update and micro-batch.
    threads: int  # Of each process.
    attention: str  # The implementation, for a contender that has several.


def read_job(folder: Path) -> Job:
    """Return the job in a folder, which the benchmark itself has written."""
    return pickle.loads((folder / JOB).read_bytes())


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
