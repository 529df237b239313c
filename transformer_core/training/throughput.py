"""Training speed of this machine, measured in a few updates on random pairs."""

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transformer_core.config import Params, Train, resolve
from transformer_core.corpus.sources.catalogue import find_entry
from transformer_core.corpus.tokens.binary import BinarizedSplit, Sentences
from transformer_core.models.architectures import build
from transformer_core.models.precision import weights_dtype
from transformer_core.sizes import ModelSize
from transformer_core.training.checkpoint import StateDirectory
from transformer_core.training.devices import default_devices, default_threads, process_group
from transformer_core.training.records import Observer, Progress
from transformer_core.training.trainer import Trainer

_USUAL_LENGTH, _BYTES_A_TOKEN = 24, 4  # Tokens of a sentence of a corpus of unknown size.
_IN_UPDATES = 0.9  # Of the time of a training; the rest goes into validations and saves.


class NullDirectory(StateDirectory):
    """Saves nothing, because the last update of a training would write gigabytes, and finds and removes nothing."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull), keep=1)  # No folder, so there are no files in it.

    def _start(self, *_given: Any) -> Future[None]:
        return Future()


def measured_rate(size: ModelSize, vocab_size: int, settings: Train, length: int, threads: int | None) -> float:
    """Return the target tokens per second of one device, in updates as in `settings` on pairs of `length` tokens per side.

    Raises `ValueError`: a sentence of this length does not fit a micro-batch.
    """
    random = np.random.default_rng(0)
    pairs = 2 * settings.tokens_per_update // length + 1
    shard = random.integers(4, vocab_size, 2 * pairs * length, dtype=np.uint32), np.arange(2 * pairs + 1, dtype=np.int64) * length
    split = BinarizedSplit(Sentences([shard], 0), Sentences([shard], 1), [np.arange(1, pairs + 1)])
    with process_group(threads) as rank:
        model = build(size, vocab_size).to(rank.device, weights_dtype(settings.precision))
        short = settings.model_copy(update={"updates": 4, "patience": 0, "bpe_dropout": 0.0, "modifiers": {}, "mix": None})
        trainer = Trainer(model, split, short, rank, NullDirectory(), Observer(), lambda: {settings.best_by: 0.0}, lambda: False)
        for _ in ("warm-up, which also makes kernels", "measured"):
            trainer.progress = Progress()
            progress = trainer.run()
    torch.cuda.empty_cache()  # Nothing on a CPU.
    return progress.target_tokens / progress.seconds


def updates_within(minutes: float, params: Params) -> int:
    """Return about how many updates a training as in `params` makes on this machine in so many minutes, by a measurement of seconds."""
    train = params.train
    devices = params.machine.devices or default_devices(train.microbatches)
    threads = params.machine.threads or default_threads(devices)
    size = find_entry(params.download.corpus).entry.size  # A recurrent model is the faster, the shorter the sentences.
    length = 1 + size.text_bytes // (2 * _BYTES_A_TOKEN * size.pairs) if size and size.pairs else _USUAL_LENGTH
    rate = measured_rate(resolve(params.model), params.bpe.vocab_size, train, min(length, params.binarize.max_tokens), threads)
    return int(_IN_UPDATES * 60 * minutes * rate * train.busy(devices) / train.tokens_per_update)
