"""This project's trainer, one process a rank: ``python -m peers.ours FOLDER``, under torchrun where several train together."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import torch
from ruamel.yaml import YAML

from peers.job import Job, Memory, Report, now, trained_parameters
from transformer_core import recipes
from transformer_core.config import Train
from transformer_core.corpus.binary import BinarizedSplit, open_split
from transformer_core.models.architectures import build
from transformer_core.models.precision import has_fast_bf16, weights_dtype
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import TransformerSize
from transformer_core.training.checkpoint import StateDirectory
from transformer_core.training.devices import Devices, joined
from transformer_core.training.records import Nobody, UpdateRecord
from transformer_core.training.trainer import Trainer, seed_everything


class _Ended(Exception):
    """The last update is done."""


class _Waits(Nobody):
    """Keeps the shares of the time that were spent waiting for batches."""

    def __init__(self) -> None:
        self.shares: list[float] = []

    def on_update(self, record: UpdateRecord) -> None:
        self.shares.append(record.data_wait_share)


def main() -> None:
    """Train for warm-up, train again with the clock running, report."""
    folder = Path(sys.argv[1])
    job = Job.read(folder)
    split = open_split(folder, "train")
    with joined(job.threads) as devices:
        launcher = (os.getppid(),) if devices.world_size > 1 and devices.rank == 0 else ()
        memory = Memory(devices.device, launcher)
        seed_everything(job.seed, 0, 0)
        size = TransformerSize(job.layers, job.d_model, job.d_ff, job.heads, *(job.d_model // job.heads,) * 2, job.dropout)
        model = build(size, job.vocab_size).to(devices.device, weights_dtype("auto"))
        _train(model, split, _settings(job, job.warm_up), devices, folder, Nobody())
        waits = _Waits()
        model.zero_grad()  # Else the first training's gradients would stand beside those of the second.
        seconds, target_tokens = _train(model, split, _settings(job, len(job.updates)), devices, folder, waits)
        Report(
            seconds=seconds,
            target_tokens=target_tokens,
            parameters=trained_parameters(model),
            precision="bf16" if has_fast_bf16(devices.device) else "float32",
            versions={"torch": torch.__version__},
            before_bytes=memory.before_bytes,
            peak_bytes=memory.peak_bytes(),
            data_wait_share=fmean(waits.shares) if devices.rank == 0 else None,
        ).write(folder, devices.rank)


def _settings(job: Job, updates: int) -> Train:
    """The paper's settings, with the job's batches; nothing is scored or saved before the last update."""
    paper = Train.model_validate(YAML(typ="safe", pure=True).load(recipes.read("wmt14-en-de-base"))["train"])
    changes = {
        "updates": updates,
        "tokens_per_update": job.tokens_per_update,
        "tokens_per_microbatch": job.tokens_per_microbatch,
        "seed": job.seed,
        "precision": "auto",
        "validate_every": updates,
        "save_every": updates,
    }
    return paper.model_copy(update=changes)


def _train(
    model: TranslationModel, split: BinarizedSplit, settings: Train, devices: Devices, folder: Path, observer: Nobody
) -> tuple[float, int]:
    """Seconds and target tokens of a whole training, from the plan's first update on."""
    ended: list[float] = []

    def validate() -> dict[str, float]:
        """Called on every rank after the last update and before anything is saved, which is no part of what is compared."""
        ended.append(now(devices.device))
        raise _Ended

    trainer = Trainer(model, split, settings, devices, StateDirectory(folder / "state", 1), observer, validate, lambda: False)
    devices.wait_for_all()
    began = now(devices.device)
    with suppress(_Ended):
        trainer.run()
    return ended[0] - began, trainer.progress.target_tokens


if __name__ == "__main__":
    main()
