"""JoeyNMT's model in its own training loop, on a CPU: ``python -m peers.joey FOLDER``, in an environment that has joeynmt 2.3.0."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from joeynmt.batch import Batch  # type: ignore[import-not-found]
from joeynmt.config import parse_global_args  # type: ignore[import-not-found]
from joeynmt.model import build_model  # type: ignore[import-not-found]
from joeynmt.training import TrainManager  # type: ignore[import-not-found]
from joeynmt.vocabulary import Vocabulary  # type: ignore[import-not-found]

from peers.job import ADAM_BETAS, LABEL_SMOOTHING, LEARNING_RATE, Job, Training, Updates, train_and_report

_CPU = torch.device("cpu")
_NEVER = 1 << 40


def main() -> None:
    """Train for warm-up, train again with the clock running, report."""
    folder = Path(sys.argv[1])
    job = Job.read(folder)
    sentences = _sentences(folder / "train")
    vocabulary = _vocabulary(job.vocab_size)
    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    model = build_model(_model_section(job), vocabulary, vocabulary)
    model.loss_function = ("crossentropy", LABEL_SMOOTHING)
    _keep_the_papers_dropout(model)

    configuration = _configuration(job, folder)
    train_and_report(folder, model, lambda: _train(model, _Corpus(sentences, job.updates, vocabulary), configuration), "float32")


def _sentences(folder: Path) -> list[list[int]]:
    """Return the token ids of source and target of each pair in turn, end tokens included."""
    tokens, offsets = (np.load(folder / f"00000.{what}.npy") for what in ("tokens", "offsets"))
    return [sentence.tolist() for sentence in np.split(tokens, offsets[1:-1])]


class _Corpus:
    """The dataset that the training loop needs: batches, and a seed that is not used."""

    seed = 0

    def __init__(self, sentences: list[list[int]], updates: Updates, vocabulary: Any) -> None:
        self._sentences = sentences
        self._updates = updates
        self._vocabulary = vocabulary
        self.seconds = 0.0
        self.batch_sampler = self

    def make_iter(self, **_: Any) -> "_Corpus":
        """Return each micro-batch once, in order."""
        return self

    def set_seed(self, seed: int) -> None:
        """Do nothing: nothing is shuffled."""

    def __iter__(self) -> Iterator[Any]:
        # The loop asks for the next batch when it has finished the one before, its update included.
        began = time.monotonic()
        for microbatches in self._updates:
            for numbers in microbatches:
                yield self._batch(numbers)
        self.seconds = time.monotonic() - began

    def _batch(self, numbers: list[int]) -> Any:
        vocabulary = self._vocabulary
        source = [self._sentences[2 * number] for number in numbers]
        target = [[vocabulary.bos_index, *self._sentences[2 * number + 1]] for number in numbers]
        return Batch(
            src=_padded(source, vocabulary.pad_index),
            src_length=torch.tensor([len(sentence) for sentence in source]),
            src_prompt_mask=None,
            trg=_padded(target, vocabulary.pad_index),
            trg_prompt_mask=None,
            indices=torch.arange(len(numbers)),
            device=_CPU,
            pad_index=vocabulary.pad_index,
            eos_index=vocabulary.eos_index,
        )


def _padded(sentences: list[list[int]], pad: int) -> torch.Tensor:
    """(B, T)."""
    longest = max(map(len, sentences))
    return torch.tensor([sentence + [pad] * (longest - len(sentence)) for sentence in sentences])


def _train(model: Any, corpus: _Corpus, configuration: dict[str, Any]) -> Training:
    arguments = parse_global_args(configuration, mode="train")
    manager = TrainManager(
        rank=0,
        model=model,
        model_dir=arguments.model_dir,
        device=_CPU,
        autocast=arguments.autocast,
        seed=arguments.seed,
        train_args=arguments.train,
        dev_args=arguments.test,
    )
    manager._save_checkpoint = lambda *_: None  # It would save at the end of a training, which is not compared.
    manager.train_and_validate(corpus, corpus)
    return Training(corpus.seconds, manager.stats.total_tokens)


def _configuration(job: Job, folder: Path) -> dict[str, Any]:
    """Return the document of its YAML file: the paper's optimiser and schedule; nothing is logged or scored during training."""
    training = {
        "optimizer": "adam",
        "adam_betas": list(ADAM_BETAS),
        "learning_rate": LEARNING_RATE,
        "scheduling": "noam",
        "label_smoothing": LABEL_SMOOTHING,
        "normalization": "tokens",
        "batch_size": job.tokens_per_update,
        "batch_type": "token",
        "batch_multiplier": len(job.updates[0]),
        "epochs": 1,
        "logging_freq": _NEVER,
        "validation_freq": _NEVER,
    }
    common = {"name": "benchmark", "model_dir": str(folder / "joeynmt"), "use_cuda": False, "random_seed": job.seed}
    return {**common, "training": training, "testing": {}, "data": {}, "model": _model_section(job)}


def _model_section(job: Job) -> dict[str, Any]:
    stack = {
        "type": "transformer",
        "num_layers": job.layers,
        "num_heads": job.heads,
        "embeddings": {"embedding_dim": job.d_model, "scale": True, "dropout": job.dropout},
        "hidden_size": job.d_model,
        "ff_size": job.d_ff,
        "dropout": job.dropout,
        "layer_norm": "post",
        "activation": "relu",
    }
    return {"tied_embeddings": True, "tied_softmax": True, "encoder": stack, "decoder": stack}


def _keep_the_papers_dropout(model: Any) -> None:
    """Switch off dropout of attention weights and inside the feed-forward network, which neither the paper nor the others have."""
    for name, module in model.named_modules():
        if name.endswith(("_att.dropout", "pwff_layer.2")):
            module.p = 0.0


def _vocabulary(size: int) -> Any:
    special = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "sep_id": None}
    tokens = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "sep_token": None}
    vocabulary = Vocabulary([], SimpleNamespace(**special, **tokens, lang_tags=[]))
    # Its own way to add tokens compares each with all others, which takes longer than the training.
    vocabulary._itos += [f"token {number}" for number in range(len(vocabulary), size)]
    vocabulary._stoi = {token: number for number, token in enumerate(vocabulary._itos)}
    return vocabulary


if __name__ == "__main__":
    main()
