"""This project's trainer, one process a rank: ``python -m peers.ours FOLDER``, under torchrun if there are several ranks."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import torch

from peers.job import Job, Memory, Training, Updates, now, train_and_report
from transformer_core import recipes
from transformer_core.config import Train
from transformer_core.corpus.tokens.binary import BinarizedSplit, open_split
from transformer_core.models.architectures import build
from transformer_core.models.precision import has_fast_bf16, weights_dtype
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import TransformerSize
from transformer_core.training.devices import Rank, process_group
from transformer_core.training.records import Observer, Progress, UpdateRecord
from transformer_core.training.throughput import NullDirectory
from transformer_core.training.trainer import Trainer
from transformer_core.training.update import seed_everything


class _Ended(Exception):
    """The last update is done."""


class _Waits(Observer):
    """Keeps the share of each update's time that was spent waiting for batches."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    def on_update(self, record: UpdateRecord) -> None:
        self.shares.append(record.data_wait_share)


def main() -> None:
    """Train for warm-up, train again with the clock running, report."""
    folder = Path(sys.argv[1])
    job = Job.read(folder)
    split = open_split(folder / "train")
    with process_group(job.threads) as rank:
        launcher = (os.getppid(),) if rank.world_size > 1 and rank.index == 0 else ()
        memory = Memory(*launcher)
        seed_everything(job.seed, 0, 0)
        model = build(size_of(job), job.vocab_size).to(rank.device, weights_dtype("auto"))

        def run(updates: Updates) -> Training:
            model.zero_grad()  # Otherwise the first training's gradients would be in memory beside those of the second.
            return Repeated(model, split, settings_of(job, len(updates)), rank).train()

        facts = {"precision": "bf16" if has_fast_bf16(rank.device) else "float32", "versions": {"torch": torch.__version__}}
        train_and_report(folder, job, model, memory, run, facts, rank.index)


def size_of(job: Job) -> TransformerSize:
    """Return the size of the job's model."""
    d_k = job.d_model // job.heads
    return TransformerSize(layers=job.layers, d_model=job.d_model, d_ff=job.d_ff, heads=job.heads, d_k=d_k, d_v=d_k, dropout=job.dropout)


def settings_of(job: Job, updates: int) -> Train:
    """Return the paper's settings with the job's batches; nothing is scored before the last update."""
    changes = {
        "updates": updates,
        "tokens_per_update": job.tokens_per_update,
        "tokens_per_microbatch": job.tokens_per_microbatch,
        "seed": job.seed,
        "precision": "auto",
        "validate_every": updates,
        "save_every": updates,
    }
    return recipes.load("wmt14-en-de-base").train.model_copy(update=changes)


class Repeated:
    """A trainer that can train from the plan's first update on several times, and makes its kernels and graphs only once."""

    def __init__(self, model: TranslationModel, split: BinarizedSplit, settings: Train, rank: Rank) -> None:
        self._rank = rank
        self._ended: list[float] = []
        self._waits = _Waits()
        self._trainer = Trainer(model, split, settings, rank, NullDirectory(), self._waits, self._validate, lambda: False)

    def train(self) -> Training:
        """Train once."""
        self._trainer.progress, self._waits.shares = Progress(), []
        self._rank.wait_for_all()
        began = now(self._rank.device)
        with suppress(_Ended):
            self._trainer.run()
        waited = fmean(self._waits.shares) if self._rank.index == 0 else None
        return Training(self._ended[-1] - began, self._trainer.progress.target_tokens, waited)

    def _validate(self) -> dict[str, float]:
        """End the clock: called on every rank after the last update. The directory copies and saves nothing, which is not compared."""
        self._ended.append(now(self._rank.device))
        raise _Ended


if __name__ == "__main__":
    main()
