"""The job of a contender and its report: files in a folder, because each contender trains in processes of its own."""

import json
import pickle
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from transformer_core.presets import TransformerSize

JOB = "job.pickle"
Updates = list[list[list[int]]]


class Setting(NamedTuple):
    """A model and the updates to train it with."""

    size: TransformerSize
    vocab_size: int
    tokens_per_update: int  # Most source tokens, and most target tokens, of an update.
    updates: int  # Number of updates that are timed.
    source_length: float  # Mean tokens of a source sentence, end token included.
    spread: float  # Standard deviation of the logarithm of lengths.
    microbatches: tuple[int, ...] = (1, 2, 4)  # Numbers of micro-batches of an update; each contender gets the one that is fastest for it.


class Job(NamedTuple):
    """The training of a setting; the pairs are beside it in the folder, as a binarized split called `train`."""

    setting: Setting
    microbatches: int  # Number of micro-batches of an update.
    seed: int  # Of our batch plan.
    updates: Updates  # Pair numbers by update and micro-batch.
    threads: int  # Of each process.
    attention: str  # The implementation, for a contender that has several.


def read_job() -> tuple[Path, Job]:
    """Return the folder that the command line names, and the job in it, which the benchmark itself has written."""
    folder = Path(sys.argv[1])
    return folder, pickle.loads((folder / JOB).read_bytes())


def now(device: torch.device) -> float:
    """Return the seconds of a clock, read when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic()


def train_and_report(
    folder: Path, model: torch.nn.Module, train: Callable[[], int], precision: str, device: torch.device, rank: int = 0
) -> None:
    """Train for warm-up, train again with the clock running, and write the report of this process into the folder.

    `train` ends once all ranks have trained; it returns target tokens, with end tokens, without padding. Matrix products have `precision`.
    """
    train()
    began = now(device)
    tokens = train()
    report = {
        "seconds": now(device) - began,
        "target_tokens": tokens,
        "parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "peak_bytes": torch.cuda.max_memory_allocated() or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "precision": precision,
    }
    (folder / f"report-{rank}.json").write_text(json.dumps(report), encoding="utf-8")
