"""Training is the same however it is cut: into micro-batches, by stops, over devices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transformer_core.config import Train
from transformer_core.corpus.binary import BinarizedSplit, binarize_split, open_split
from transformer_core.errors import Interrupted
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.training.checkpoint import StateDirectory
from transformer_core.training.devices import Devices
from transformer_core.training.trainer import Trainer, UpdateRecord, seed_everything

SIZE = TransformerSize(layers=1, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.2)
VOCAB = 30
ALONE = Devices(rank=0, world_size=1, device=torch.device("cpu"))
SETTINGS = Train(
    updates=24,
    tokens_per_update=120,
    tokens_per_microbatch=40,
    learning_rate=1.0,
    warmup=10,
    adam_beta1=0.9,
    adam_beta2=0.98,
    adam_epsilon=1e-9,
    label_smoothing=0.1,
    precision="float32",
    validate_every=12,
    save_every=10,
    keep=2,
    seed=3,
)


class Watcher:
    """Keeps what it is told; its state is how much that was."""

    def __init__(self) -> None:
        self.records: list[UpdateRecord] = []
        self.validations: list[int] = []
        self.restored: dict[str, Any] = {}

    def on_update(self, record: UpdateRecord) -> None:
        self.records.append(record)

    def on_validation(self, update: int, seconds: float, scores: dict[str, float]) -> None:
        self.validations.append(update)

    def state(self) -> dict[str, Any]:
        return {"records": len(self.records)}

    def restore(self, state: dict[str, Any]) -> None:
        self.restored = state


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> BinarizedSplit:
    """Target = source reversed, lengths 2 to 12."""
    random = np.random.default_rng(0)
    directory = tmp_path_factory.mktemp("binarized")
    sources = [random.integers(4, VOCAB, random.integers(1, 12)).tolist() for _ in range(150)]
    binarize_split(directory, "train", [([*words, 3], [*words[::-1], *words[:1], 3]) for words in sources], VOCAB)
    return open_split(directory, "train")


def build(dtype: torch.dtype = torch.float64, size: TransformerSize = SIZE) -> Transformer:
    seed_everything(SETTINGS.seed, 0, 0)
    return Transformer(size, VOCAB).to(dtype)


def trainer_of(
    model: Transformer,
    split: BinarizedSplit,
    path: Path,
    settings: Train = SETTINGS,
    watcher: Watcher | None = None,
    stop_after: int = 10**6,
) -> Trainer:
    """A trainer that is asked to stop in its update number `stop_after`."""

    def stop_asked() -> bool:
        return trainer.progress.update + 1 >= stop_after

    trainer = Trainer(
        model, split, settings, ALONE, StateDirectory(path, settings.keep), watcher or Watcher(), lambda: {"nll": 0.0}, stop_asked
    )
    return trainer


def weights(model: Transformer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_microbatches_add_up_to_the_big_batch(split: BinarizedSplit, tmp_path: Path) -> None:
    """One update, its pairs in one micro-batch or in several, without dropout: the weights after it are the same."""
    size = TransformerSize(**{**SIZE.__dict__, "dropout": 0.0})
    found = []
    for rows_times_longest in (10_000, 24):
        model = build(size=size)
        settings = SETTINGS.model_copy(
            update={"updates": 1, "tokens_per_update": 10_000, "tokens_per_microbatch": rows_times_longest, "warmup": 1}
        )
        trainer_of(model, split, tmp_path / str(rows_times_longest), settings).run()
        found.append(weights(model))
    assert not torch.equal(found[0], weights(build(size=size)))
    # Adam's first step is g / (|g| + eps) times the rate: 1e-16 of summation order over the smallest gradients stays far below 1e-8.
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-8)


@pytest.mark.parametrize("stop_after", [1, 7, 10, 13, 23])
def test_stopped_and_resumed_is_never_stopped_to_the_bit(split: BinarizedSplit, tmp_path: Path, stop_after: int) -> None:
    straight = build(torch.float32)
    trainer_of(straight, split, tmp_path / "straight").run()
    with pytest.raises(Interrupted, match=f"after update {stop_after}, state saved"):
        trainer_of(build(torch.float32), split, tmp_path / "stopped", stop_after=stop_after).run()
    resumed = build(torch.float32)
    watcher = Watcher()
    trainer = trainer_of(resumed, split, tmp_path / "stopped", watcher=watcher)
    assert trainer.resume()
    trainer.run()
    assert torch.equal(weights(straight), weights(resumed))
    assert trainer.progress.update == SETTINGS.updates
    assert watcher.restored == {"records": stop_after // 20}


def test_training_learns_and_tells_its_observer(split: BinarizedSplit, tmp_path: Path) -> None:
    watcher = Watcher()
    settings = SETTINGS.model_copy(update={"updates": 200, "warmup": 60, "validate_every": 50})
    trainer_of(build(torch.float32), split, tmp_path, settings, watcher).run()
    assert [record.update for record in watcher.records] == list(range(20, 201, 20))
    assert watcher.validations == [50, 100, 150, 200]
    first, last = watcher.records[0], watcher.records[-1]
    assert last.perplexity < first.perplexity / 2
    assert 0 <= last.padding_share < 0.5
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "update-00000190.safetensors",
        "update-00000200.safetensors",
    ]


RANK = """
import json, sys
from pathlib import Path
import torch
from transformer_core.config import Train
from transformer_core.corpus.binary import open_split
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.training.checkpoint import StateDirectory
from transformer_core.training.devices import joined
from transformer_core.training.trainer import Nobody, Trainer, seed_everything

data, out, size, settings = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), Train(**json.loads(sys.argv[4]))
with joined(threads=1) as devices:
    seed_everything(settings.seed, 0, 0)
    model = Transformer(TransformerSize(**size), 30).double()
    trainer = Trainer(model, open_split(data, "train"), settings, devices, StateDirectory(out, 1), Nobody(), lambda: {}, lambda: False)
    trainer.run()
    if devices.rank == 0:
        torch.save(torch.cat([p.detach().flatten() for p in model.parameters()]), out / "weights.pt")
"""


@pytest.mark.slow  # about 12 s: two torchrun starts
def test_two_devices_train_what_one_trains_dropout_on(split: BinarizedSplit, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK, encoding="utf-8")
    binarize_split(tmp_path / "data", "train", [(split.source[n].tolist(), split.target[n].tolist()) for n in range(len(split))], VOCAB)
    found = []
    for devices in (1, 2):
        out = tmp_path / str(devices)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}", str(script)]
        arguments = [str(tmp_path / "data"), str(out), json.dumps(SIZE.__dict__), json.dumps(SETTINGS.model_dump())]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        subprocess.run([*command, *arguments], check=True, timeout=120, env=environment, capture_output=True)
        found.append(torch.load(out / "weights.pt", weights_only=True))
    # float64; Adam divides by roots of tiny gradients, which lifts the 1e-16 of the summation order by a few digits in 24 updates.
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-10)
