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
from transformer_core.training.records import Observer, UpdateRecord
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
        memory = Memory(rank.device, launcher)
        seed_everything(job.seed, 0, 0)
        model = build(size_of(job), job.vocab_size).to(rank.device, weights_dtype("auto"))

        def run(updates: Updates) -> Training:
            model.zero_grad()  # Otherwise the first training's gradients would be in memory beside those of the second.
            return train(model, split, settings_of(job, len(updates)), rank)

        facts = {"precision": "bf16" if has_fast_bf16(rank.device) else "float32", "versions": {"torch": torch.__version__}}
        train_and_report(folder, job, model, memory, run, facts, rank.index)


def size_of(job: Job) -> TransformerSize:
    """Return the size of the job's model."""
    return TransformerSize(job.layers, job.d_model, job.d_ff, job.heads, *(job.d_model // job.heads,) * 2, job.dropout)


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


def train(model: TranslationModel, split: BinarizedSplit, settings: Train, rank: Rank) -> Training:
    """Train from the plan's first update on."""
    ended: list[float] = []
    waits = _Waits()

    def validate() -> dict[str, float]:
        """End the clock: called on every rank after the last update. The directory copies and saves nothing, which is not compared."""
        ended.append(now(rank.device))
        raise _Ended

    trainer = Trainer(model, split, settings, rank, NullDirectory(), waits, validate, lambda: False)
    rank.wait_for_all()
    began = now(rank.device)
    with suppress(_Ended):
        trainer.run()
    return Training(ended[0] - began, trainer.progress.target_tokens, fmean(waits.shares) if rank.index == 0 else None)


if __name__ == "__main__":
    main()
