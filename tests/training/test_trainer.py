"""Training is the same however it is cut: into micro-batches, by stops, over devices; and it survives what goes wrong."""

import errno
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.corpus.encoded import learnt_subword, write_binarized
from tests.refusals import refused
from transformer_core.config import MixStage, Train
from transformer_core.corpus.tokens.batches import BatchPlan, Cursor
from transformer_core.corpus.tokens.binary import BinarizedSplit, Pairs, open_split
from transformer_core.corpus.tokens.bpe_dropout import BpeDropout
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.errors import Interrupted, UserError
from transformer_core.models.ops import choice
from transformer_core.models.ops import gradient_graphs as graphs_module
from transformer_core.models.ops.gradient_graphs import GradientGraphs
from transformer_core.models.ops.packed import PackedBatch
from transformer_core.models.ops.packed_transformer import PackedTransformer
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.training import trainer as trainer_module
from transformer_core.training import update as update_module
from transformer_core.training.checkpoint import StateDirectory, checkpoint_files, state_files, update_of
from transformer_core.training.devices import Rank, process_group
from transformer_core.training.loader import Batch, make_batch, shares
from transformer_core.training.loss import Loss, cross_entropy
from transformer_core.training.records import Observer, UpdateRecord
from transformer_core.training.trainer import Trainer
from transformer_core.training.update import seed_everything

SIZE = TransformerSize(layers=1, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.2)
STILL = replace(SIZE, dropout=0.0)
VOCAB = 30
on_every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
SETTINGS = Train(
    init_from=None, updates=24, mix=None, tokens_per_update=120, tokens_per_microbatch=40, precision="float32", max_skipped=2, seed=3,
    learning_rate_factor=1.0, warmup=10, cooldown=0.2, adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-9,
    label_smoothing=0.1, bpe_dropout=0.0, modifiers={}, r_drop=0.0,
    validate_every=12, bleu_sentences=1, best_by="nll", comet=None, patience=0,
    save_every=10, keep=2, keep_best=0,
)  # fmt: skip


def changed(**settings: Any) -> Train:
    return SETTINGS.model_copy(update=settings)


class Watcher(Observer):
    """Keeps the records it receives; its state is their number."""

    def __init__(self) -> None:
        self.records: list[UpdateRecord] = []
        self.validations: list[int] = []
        self.skipped: list[tuple[int, list[int]]] = []
        self.overflows: list[bool] = []
        self.restored: dict[str, Any] = {}

    def on_update(self, record: UpdateRecord) -> None:
        self.records.append(record)

    def on_skipped(self, update: int, lines: Sequence[int], overflow: bool) -> None:
        self.skipped.append((update, list(lines)))
        self.overflows.append(overflow)

    def on_validation(self, update: int, seconds: float, scores: dict[str, float]) -> None:
        self.validations.append(update)

    def state(self) -> dict[str, Any]:
        return {"records": len(self.records)}

    def restore(self, state: dict[str, Any]) -> None:
        self.restored = state


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Target = source reversed and its first word again, lengths 2 to 12; every 50th pair is too long and left out."""
    random = np.random.default_rng(0)
    directory = tmp_path_factory.mktemp("binarized")
    sources = [random.integers(4, VOCAB, 30 if n % 50 == 0 else random.integers(1, 12)).tolist() for n in range(1, 151)]
    targets = [[*words[::-1], *words[:1], 3] for words in sources]
    write_binarized(directory, [[*words, 3] for words in sources], targets, VOCAB, max_tokens=20)
    return directory


@pytest.fixture(scope="module")
def split(data: Path) -> BinarizedSplit:
    return open_split(data / "train")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of 1 to 6 made-up words and the same backwards, in subwords, with the model that parts them."""
    random = np.random.default_rng(0)
    directory = tmp_path_factory.mktemp("text")
    words = ["".join(random.choice(["ba", "du", "gim", "le", "mu"], random.integers(1, 4))) for _ in range(20)]
    sources = [" ".join(random.choice(words, random.integers(1, 7))) for _ in range(150)]
    subword = learnt_subword(sources, directory / "spm.model", vocab_size=VOCAB)
    targets = [" ".join(source.split()[::-1]) for source in sources]
    write_binarized(directory, subword.encode_clean(sources), subword.encode_clean(targets), subword, max_tokens=40)
    return directory


def build(dtype: torch.dtype = torch.float32, size: TransformerSize = SIZE, device: str = "cpu") -> Transformer:
    seed_everything(SETTINGS.seed, 0, 0)
    return Transformer(size, VOCAB).to(device, dtype)


def trainer_of(
    model: Transformer,
    split: BinarizedSplit,
    path: Path,
    settings: Train = SETTINGS,
    watcher: Watcher | None = None,
    stop_after: int = 10**6,
    validate: Callable[[], dict[str, float] | None] = lambda: {"nll": 0.0},
    bpe_dropout: BpeDropout | None = None,
) -> Trainer:
    """A trainer on the model's device that is asked to stop in its update number `stop_after`."""

    def stop_asked() -> bool:
        return trainer.progress.update + 1 > stop_after

    states = StateDirectory(path, settings.keep)
    alone = Rank(index=0, world_size=1, device=next(model.parameters()).device)
    trainer = Trainer(model, split, settings, alone, states, watcher or Watcher(), validate, stop_asked, bpe_dropout=bpe_dropout)
    return trainer


def resumed(split: BinarizedSplit, path: Path, settings: Train = SETTINGS, device: str = "cpu", **arguments: Any) -> Trainer:
    """A trainer of a new model that has taken up the state in `path`."""
    trainer = trainer_of(build(device=device), split, path, settings, **arguments)
    assert trainer.resume()
    return trainer


def weights(model: Transformer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gradients(model: Transformer) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@on_every_device
def test_microbatches_add_up_to_the_big_batch(split: BinarizedSplit, tmp_path: Path, device: str) -> None:
    """One update, its pairs in one micro-batch or in several, without dropout: the gradients and the weights after it are the same."""
    for dtype, precision, tolerance in ((torch.float64, "float64", 1e-10), (torch.float32, "float32", 1e-5)):
        found, after = [], []
        for rows_times_longest in (10_000, 24):
            model = build(dtype, STILL, device)
            settings = changed(updates=1, tokens_per_update=10_000, tokens_per_microbatch=rows_times_longest, warmup=1, precision=precision)
            trainer_of(model, split, tmp_path / precision / str(rows_times_longest), settings).run()
            found.append(gradients(model))
            after.append(weights(model))
        assert found[0].abs().max() > 0.01
        assert (found[0] - found[1]).abs().max() <= tolerance * found[0].abs().max()
        assert not torch.equal(after[0], weights(build(dtype, STILL, device)))
        # Adam's first step is g / (|g| + eps) times the rate: 1e-16 of summation order over the smallest gradients stays far below 1e-8.
        if dtype == torch.float64:
            assert torch.allclose(after[0], after[1], rtol=0, atol=1e-8)


@pytest.mark.gpu
def test_a_gpu_finds_the_gradients_of_a_cpu(split: BinarizedSplit, tmp_path: Path) -> None:
    """In bf16 the GPU has packed batches, generated kernels and graphs; the CPU then has float32."""
    for dtype, precision, tolerance in ((torch.float64, "float64", 1e-10), (torch.float32, "float32", 1e-5), (torch.float32, "bf16", 0.03)):
        found = []
        for device in ("cpu", "cuda"):
            model = build(dtype, STILL, device)
            chosen = "float32" if device == "cpu" and precision == "bf16" else precision
            trainer_of(model, split, tmp_path / precision / device, changed(updates=1, precision=chosen)).run()
            found.append(gradients(model).cpu())
        assert (found[0] - found[1]).abs().max() <= tolerance * found[0].abs().max()


SEGMENTED_ANEW = changed(bpe_dropout=0.3)


def segmenting(text: Path, settings: Train = SEGMENTED_ANEW) -> tuple[BinarizedSplit, BpeDropout]:
    split = open_split(text / "train")
    return split, BpeDropout(Subword.load(text / "spm.model"), split, settings)


LOW = {"updates": 40, "warmup": 20}
CUT: dict[str, dict[str, Any]] = {
    "plain": {},
    "BPE-dropout": {"bpe_dropout": 0.3},
    "modifiers": {"modifiers": {"typos": 0.5}},
    "bf16": {"precision": "bf16"} | LOW,
    "fp16, whose state has its scaler, and R-Drop": {"precision": "fp16", "r_drop": 5.0} | LOW,
}


@on_every_device
@pytest.mark.parametrize("changes", CUT.values(), ids=CUT.keys())
def test_a_resumed_training_is_bit_equal(split: BinarizedSplit, text: Path, tmp_path: Path, changes: dict[str, Any], device: str) -> None:
    """One training is stopped again and again: its weights and records are those of a training that is not. In low precision it learns."""
    settings = changed(**changes)
    new_dropout: Callable[[], BpeDropout | None] = lambda: None  # noqa: E731
    if settings.segments_anew:
        split, new_dropout = segmenting(text)[0], lambda: segmenting(text, settings)[1]
    straight, watcher, stopped = build(device=device), Watcher(), Watcher()
    whole = trainer_of(straight, split, tmp_path / "straight", settings, watcher, bpe_dropout=new_dropout())
    whole.run()
    stops = [1, 7, 10, 13, 23]
    for begun, stop in pairwise([0, *stops, settings.updates]):
        model = build(device=device)
        trainer = trainer_of(model, split, tmp_path / "stopped", settings, stopped, stop_after=stop, bpe_dropout=new_dropout())
        assert trainer.resume() == (begun > 0)
        assert trainer.progress.update == begun
        assert stopped.restored == ({"records": begun // 20} if begun else {})
        trainer.check_memory()  # It changes nothing.
        with pytest.raises(Interrupted, match=f"after update {stop}, state saved") if stop in stops else nullcontext():
            trainer.run()
    assert torch.equal(weights(straight), weights(model))
    assert trainer._updater.state()["scaler"] == whole._updater.state()["scaler"]
    assert trainer.progress.update == settings.updates
    for ours, theirs in zip(stopped.records, watcher.records, strict=True):
        assert (ours.loss, ours.perplexity, ours.gradient_norm) == (theirs.loss, theirs.perplexity, theirs.gradient_norm)
    if "precision" in changes:
        assert stopped.records[-1].perplexity < stopped.records[0].perplexity


def test_bpe_dropout_trains_on_other_tokens_and_counts_these(text: Path, tmp_path: Path) -> None:
    """Two epochs: the tokens of the updates segmented anew are what loss, rate and padding share are of."""
    split, bpe_dropout = segmenting(text)
    plan = BatchPlan(split.source.lengths, split.target.lengths, SETTINGS.tokens_per_update, SETTINGS.tokens_per_microbatch, SETTINGS.seed)
    updates = [bpe_dropout.segmented(update, Cursor(epoch, done))[0] for epoch in range(2) for done, update in enumerate(plan.epoch(epoch))]
    settings = SEGMENTED_ANEW.model_copy(update={"updates": len(updates)})
    watcher = Watcher()
    trainer = trainer_of(build(), split, tmp_path / "anew", settings, watcher, bpe_dropout=bpe_dropout)
    progress = trainer.run()
    assert progress.target_tokens == sum(update.target_tokens for update in updates)
    assert progress.target_tokens > 1.1 * 2 * int(split.target.lengths.sum())
    first = updates[:20]
    tokens = sum(update.source_tokens + update.target_tokens for update in first)
    assert watcher.records[0].padding_share == pytest.approx(1 - tokens / sum(update.positions for update in first))
    plainly = build()
    trainer_of(plainly, split, tmp_path / "plain", settings.model_copy(update={"bpe_dropout": 0.0})).run()
    assert not torch.equal(weights(plainly), weights(trainer.model))


def test_without_dropout_r_drop_changes_no_gradient_and_no_record(split: BinarizedSplit, tmp_path: Path) -> None:
    """Both passes are then the same; each token is counted once."""
    found = []
    for alpha in (0.0, 5.0):
        watcher, model = Watcher(), build(torch.float64, STILL)
        settings = changed(updates=1, precision="float64", r_drop=alpha)
        trainer = trainer_of(model, split, tmp_path / str(alpha), settings, watcher)
        progress = trainer.run()
        (record,) = watcher.records
        flops = [count // settings.passes for count in trainer._flops_a_token]
        found.append((gradients(model), record.loss, record.perplexity, record.padding_share, progress.target_tokens, flops))
    (once, *record), (twice, *same) = found
    assert (once - twice).abs().max() <= 1e-12 * once.abs().max()
    assert same[:3] == pytest.approx(record[:3], rel=1e-12)
    assert same[3:] == record[3:]


def test_training_learns_and_tells_its_observer(split: BinarizedSplit, tmp_path: Path) -> None:
    watcher = Watcher()
    trainer_of(build(), split, tmp_path, changed(updates=100, learning_rate_factor=0.5, warmup=50, validate_every=50), watcher).run()
    assert [record.update for record in watcher.records] == list(range(20, 101, 20))
    assert watcher.validations == [50, 100]
    first, last = watcher.records[0], watcher.records[-1]
    assert last.perplexity < first.perplexity / 2
    assert [update_of(file) for file in checkpoint_files(tmp_path / "checkpoints")] == [90, 100]


def test_a_state_of_a_machine_without_a_scaler_goes_on_where_there_is_one(split: BinarizedSplit, tmp_path: Path) -> None:
    """`precision: auto` is bf16 on one node and fp16 on the next."""
    with pytest.raises(Interrupted):
        trainer_of(build(), split, tmp_path, changed(precision="bf16"), stop_after=11).run()
    watcher = Watcher()
    assert resumed(split, tmp_path, changed(precision="fp16"), watcher=watcher).run().update == SETTINGS.updates
    assert [record.skipped for record in watcher.records] == [0, 0]


class Breaking(Transformer):
    """Gives an output that is not finite in the updates of these numbers."""

    def break_in(self, trainer: Trainer, updates: set[int]) -> None:
        self._breaks = lambda: trainer.progress.update + 1 in updates

    def forward(self, source: torch.Tensor, source_mask: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        out = super().forward(source, source_mask, target)
        return out * float("inf") if self._breaks() else out


def breaking(
    split: BinarizedSplit, path: Path, broken: set[int], watcher: Watcher, stop_after: int = 10**6, **changes: Any
) -> tuple[Breaking, Trainer, list[torch.Tensor]]:
    """A model that breaks, its trainer, and its weights after each update."""
    seed_everything(SETTINGS.seed, 0, 0)
    model = Breaking(SIZE, VOCAB)
    history: list[torch.Tensor] = []

    def validate() -> dict[str, float]:
        history.append(weights(model))
        return {"nll": 0.0}

    trainer = trainer_of(model, split, path, changed(**{"validate_every": 1, "updates": 20} | changes), watcher, stop_after, validate)
    model.break_in(trainer, broken)
    return model, trainer, history


def test_an_update_that_is_not_finite_changes_nothing_and_is_reported(split: BinarizedSplit, tmp_path: Path) -> None:
    watcher = Watcher()
    model, trainer, history = breaking(split, tmp_path, {2, 13, 14}, watcher, updates=40)
    trainer.run()
    same = [bool(torch.equal(before, after)) for before, after in pairwise(history)]
    assert [number + 2 for number, equal in enumerate(same) if equal] == [2, 13, 14]
    assert [update for update, _ in watcher.skipped] == [2, 13, 14]
    assert [record.skipped for record in watcher.records] == [3, 0]
    assert all(np.isfinite([record.loss, record.gradient_norm]).all() for record in watcher.records)
    assert bool(weights(model).isfinite().all())


def test_an_overflow_of_the_loss_scaled_for_fp16_is_told_from_a_loss_that_is_not_finite(split: BinarizedSplit, tmp_path: Path) -> None:
    watcher = Watcher()
    _, trainer, _ = breaking(split, tmp_path, {22}, watcher, updates=24, precision="fp16", max_skipped=100)
    trainer._updater._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    trainer.run()
    assert {1, 22} < {update for update, _ in watcher.skipped}  # The first updates, until the scale, halved each time, is low enough.
    assert [update for (update, _), overflow in zip(watcher.skipped, watcher.overflows, strict=True) if not overflow] == [22]


def test_more_overflows_in_a_row_than_max_skipped_are_not_expected(split: BinarizedSplit, tmp_path: Path) -> None:
    watcher = Watcher()
    _, trainer, _ = breaking(split, tmp_path, set(), watcher, precision="fp16")
    trainer._updater._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    with refused(78, "not finite in 3 updates in a row"):
        trainer.run()
    assert watcher.overflows == [True, True, False, False]  # The fourth was computed before the third was read.


def test_the_lines_of_a_skipped_update_are_those_of_the_text(split: BinarizedSplit, tmp_path: Path) -> None:
    """All updates of an epoch are broken one at a time: every line but those left out for their length is named once."""
    watcher = Watcher()
    _, trainer, _ = breaking(split, tmp_path, set(range(1, 16)), watcher, updates=15, max_skipped=1000)
    trainer.run()
    assert not watcher.records
    epoch: list[int] = []
    for _, lines in watcher.skipped:
        if len(epoch) < len(split):
            epoch += lines
    assert sorted(epoch) == [line for line in range(1, 151) if line % 50]


@pytest.mark.parametrize("last", [32, 33])
@pytest.mark.parametrize("between", [10, 1000])
def test_too_many_in_a_row_take_the_weights_back_and_soon_after_that_end(
    split: BinarizedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int, between: int
) -> None:
    monkeypatch.setattr(trainer_module, "_UPDATES_BETWEEN_RETURNS", between)
    watcher, broken = Watcher(), [12, 13, 14, 15, *range(30, last + 1)]
    _, trainer, history = breaking(split, tmp_path, set(broken), watcher, updates=40)
    ends = r"not finite in 3 updates in a row before update 33\. Lower train.learning_rate_factor"
    with refused(78, ends) if between > last - 15 else nullcontext():
        trainer.run()
    assert [update for update, _ in watcher.skipped] == broken
    # After update 15 the third in a row is known, and the weights are those of the state after update 10; the batches go on.
    assert torch.equal(history[14], history[9])
    assert not torch.equal(history[13], history[9])
    assert not torch.equal(history[15], history[10])
    # The second time they are those after update 20: the one of update 30 is not saved.
    assert len(history) == 32 or torch.equal(history[32], history[19])


def test_a_stop_in_a_row_of_skipped_updates_goes_on_the_same(split: BinarizedSplit, tmp_path: Path) -> None:
    broken = {12, 13, 14, 15}
    straight, trainer, _ = breaking(split, tmp_path / "straight", broken, Watcher())
    trainer.run()
    _, trainer, _ = breaking(split, tmp_path / "stopped", broken, Watcher(), stop_after=13)
    with pytest.raises(Interrupted):
        trainer.run()
    again, trainer, _ = breaking(split, tmp_path / "stopped", broken, Watcher())
    assert trainer.resume()
    trainer.run()
    assert torch.equal(weights(straight), weights(again))


def scripted(values: list[float]) -> Callable[[], dict[str, float]]:
    """Validations that score these, one after the other."""
    left = iter(values)
    return lambda: {"nll": next(left)}


NLLS = [3.0, 2.0, 2.5, 1.9, 2.1, 2.2, 2.0, 1.0]


@pytest.mark.parametrize("last", [6, 12])
@pytest.mark.parametrize("killed", [False, True])
def test_a_stop_or_a_kill_during_a_validation_costs_no_update(split: BinarizedSplit, tmp_path: Path, last: int, killed: bool) -> None:
    settings = changed(updates=12, validate_every=6, save_every=6)
    straight = build()
    trainer_of(straight, split, tmp_path / "straight", settings).run()

    def validate() -> dict[str, float] | None:
        if trainer.progress.update < last:
            return {"nll": 0.0}
        if killed:
            trainer.directory.wait()  # The write that is under way may well end before a kill.
            raise KeyboardInterrupt
        return None

    trainer = trainer_of(build(), split, tmp_path / "stopped", settings, validate=validate)
    with pytest.raises(KeyboardInterrupt if killed else Interrupted):
        trainer.run()
    watcher = Watcher()
    trainer = resumed(split, tmp_path / "stopped", settings, watcher=watcher)
    assert trainer.progress.update == last
    trainer.run()
    assert watcher.validations == [update for update in (6, 12) if update >= last]
    assert torch.equal(weights(straight), weights(trainer.model))
    kept = [[update_of(file) for file in checkpoint_files(tmp_path / name / "checkpoints")] for name in ("straight", "stopped")]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("broken", [4, 8])
@pytest.mark.parametrize("at", ["_write_checkpoint", "_write_state"])
def test_a_failed_write_costs_nothing(split: BinarizedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, broken: int) -> None:
    """As a kill between the writes of state and checkpoint; updates 4 and 8 are saved without a validation."""
    settings = changed(updates=12, save_every=2, validate_every=6, keep=4)
    trainer_of(build(), split, tmp_path / "straight", settings).run()
    write = getattr(StateDirectory, at)

    def failing(self: StateDirectory, update: int, *given: Any) -> None:
        if update == broken:
            raise OSError(errno.EIO, "Input/output error")
        write(self, update, *given)

    with monkeypatch.context() as disk:
        disk.setattr(StateDirectory, at, failing)
        with pytest.raises(OSError, match="Input/output error"):
            trainer_of(build(), split, tmp_path / "full", settings).run()
    trainer = resumed(split, tmp_path / "full", settings)
    assert trainer.progress.update == (broken if at == "_write_checkpoint" else broken - 2)
    trainer.run()
    kept = [[(file.name, file.read_bytes()) for file in checkpoint_files(tmp_path / name / "checkpoints")] for name in ("straight", "full")]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("stop_after", [10**6, 3, 11, 13])
def test_patience_ends_a_training_also_after_a_stop_and_the_best_are_kept(split: BinarizedSplit, tmp_path: Path, stop_after: int) -> None:
    settings = changed(updates=100, validate_every=2, save_every=2, patience=3, keep=1, keep_best=2, seed=4)
    trainer = trainer_of(build(), split, tmp_path, settings, stop_after=stop_after, validate=scripted(NLLS))
    if stop_after < 100:
        with pytest.raises(Interrupted):
            trainer.run()
        done = stop_after // 2
        trainer = resumed(split, tmp_path, settings, validate=scripted(NLLS[done:]))
    progress = trainer.run()
    assert progress.update == 14  # The best was the fourth validation, after update 8; three more were not better.
    assert [update_of(file) for file in checkpoint_files(tmp_path / "checkpoints")] == [4, 8, 14]


def test_patience_counts_the_validations_of_the_last_stage_alone(split: BinarizedSplit, tmp_path: Path) -> None:
    stages = [MixStage(until=0.1, weights={"old": 1}), MixStage(weights={"old": 1, "new": 1})]
    settings = changed(updates=100, validate_every=2, save_every=2, patience=3, keep=1, keep_best=0, mix=stages)
    parts = replace(split, part_names=["old", "new"], part_of=np.arange(len(split), dtype=np.uint16) % 2)
    nlls = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 8.0, 8.0, 8.0, 8.0, 8.0]
    # The first stage ends after update 10; the best validation after it is that after update 14, and three more were not better.
    assert trainer_of(build(), parts, tmp_path, settings, validate=scripted(nlls)).run().update == 20


def test_a_training_with_more_updates_has_the_checkpoints_of_a_straight_one(split: BinarizedSplit, tmp_path: Path) -> None:
    """Its first end, after update 10, is no multiple of `save_every`, and its validation is the best."""
    settings = changed(updates=12, cooldown=0.0, validate_every=4, save_every=4, keep=2, keep_best=1)
    trainer_of(build(), split, tmp_path / "straight", settings, validate=scripted([1.0, 2.0, 3.0])).run()
    shorter = settings.model_copy(update={"updates": 10})
    trainer_of(build(), split, tmp_path / "longer", shorter, validate=scripted([1.0, 2.0, 0.5])).run()
    resumed(split, tmp_path / "longer", settings, validate=scripted([3.0])).run()
    kept = [{file.name: file.read_bytes() for file in checkpoint_files(tmp_path / name / "checkpoints")} for name in ("straight", "longer")]
    assert [update_of(Path(name)) for name in kept[0]] == [4, 8, 12]
    assert kept[0] == kept[1]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[PackedBatch]:
    """Batches whose graphs were captured, on a CPU: a recorded graph replays the passes themselves, without kernels."""
    captured: list[PackedBatch] = []

    def record(_: GradientGraphs, batch: PackedBatch, add_gradients: Callable[..., None]) -> Any:
        captured.append(batch)
        divisor, own = torch.ones(()), deepcopy(batch)
        return SimpleNamespace(replay=lambda: add_gradients(own, divisor)), own, divisor

    def without_filling(decoded: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *settings: float) -> Loss:
        return cross_entropy(decoded[targets >= 0], weight, targets[targets >= 0], *settings)  # As the kernel of the loss computes it.

    monkeypatch.setattr(update_module, "cross_entropy", without_filling)
    monkeypatch.setattr(GradientGraphs, "_captured", record)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    for name in ("from_ampere", "can_compile"):
        monkeypatch.setattr(choice, name, lambda *_: True)
    monkeypatch.setattr(choice, "PackedTransformer", lambda model, _: PackedTransformer(model, kernels=False))
    return captured


OF_SHAPES = changed(precision="bf16", tokens_per_update=600, tokens_per_microbatch=300)


def test_graphs_of_all_shapes_are_captured_before_the_first_update_and_further_shapes_take_the_plain_path(
    split: BinarizedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: list[PackedBatch]
) -> None:
    """The weights are the same however many graphs there may be."""
    found = []
    for most in (1, 256):
        monkeypatch.setattr(graphs_module, "_MOST_GRAPHS", most)
        captured.clear()
        model = build(size=STILL)
        trainer = trainer_of(model, split, tmp_path / str(most), OF_SHAPES)
        trainer.check_memory()
        shapes = {batch.shape for batch in captured}
        assert len(captured) == len(shapes) >= min(most, 2)
        trainer.run()
        assert len(captured) == len(shapes)
        found.append(weights(model))
    assert torch.equal(*found)


@on_every_device
def test_a_resumed_training_is_equal_to_the_bit_whichever_shapes_are_captured(
    split: BinarizedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, device: str
) -> None:
    """All shapes in the straight training; the first two of each start in the stopped one, others of which are launched one by one."""
    if device == "cpu":
        request.getfixturevalue("captured")
    straight = build(device=device)
    trainer_of(straight, split, tmp_path / "straight", OF_SHAPES).run()
    monkeypatch.setattr(graphs_module, "_MOST_GRAPHS", 2)
    for stop in (5, 12, 10**6):
        model = build(device=device)
        trainer = trainer_of(model, split, tmp_path / "stopped", OF_SHAPES, stop_after=stop)
        assert trainer.resume() == (stop > 5)
        with pytest.raises(Interrupted) if stop < OF_SHAPES.updates else nullcontext():
            trainer.run()
        graphs = trainer._updater._graphs
        assert graphs is not None
        assert len(graphs._graphs) == 2
    assert torch.equal(weights(straight), weights(model))


def test_an_error_in_the_loaders_thread_is_that_of_the_training(split: BinarizedSplit) -> None:
    plan = BatchPlan(split.source.lengths, split.target.lengths, SETTINGS.tokens_per_update, SETTINGS.tokens_per_microbatch, SETTINGS.seed)
    made: list[Batch] = []

    def make(pairs: Pairs) -> Batch:
        if len(made) == 30:
            raise OSError(errno.EIO, "Input/output error")
        made.append(make_batch(pairs))
        return made[-1]

    alone, updates = Rank(0, 1, torch.device("cpu")), plan.updates_from(Cursor(0, 0))
    with pytest.raises(OSError, match="Input/output error"), closing(shares(updates, split, alone, make, None)) as coming:
        for _ in coming:
            pass
    assert len(made) == 30


@pytest.mark.parametrize("alpha", [0.0, 5.0])
def test_an_update_waits_for_no_device(split: BinarizedSplit, tmp_path: Path, alpha: float) -> None:
    """Between the parts of an update nothing asks the device for a value: neither a number nor the size of a result."""
    trainer = trainer_of(build(), split, tmp_path, changed(r_drop=alpha, updates=4))
    seen: set[str] = set()
    update = trainer._updater.run

    def profiled(*arguments: Any) -> None:
        if trainer.progress.update != 2:
            return update(*arguments)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            update(*arguments)
        seen.update(event.name for event in profile.events() or [] if not _inside("aten::_fused_adam_", event))

    trainer._updater.run = profiled  # type: ignore[method-assign]
    trainer.run()
    assert "aten::mm" in seen
    asks = {"item", "_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "_unique2"}
    assert not seen & {f"aten::{name}" for name in asks}


def _inside(kernel: str, event: Any) -> bool:
    """The CPU's own Adam kernel reads its count of steps, a number in the CPU's memory; that of a GPU does not."""
    while event is not None and event.name != kernel:
        event = event.cpu_parent
    return event is not None


@pytest.fixture(scope="module")
def processes(_isolated: None) -> ForkServerContext:
    """Starts processes that have all modules imported, which takes seconds: a server imports them once and forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # The latter is imported by the first optimiser.
    return context


TOO_MANY = "78 0 train.tokens_per_microbatch: the model and 4,000 tokens do not fit the memory of this cpu. Lower it"


def train_in_little_memory(_: Rank, data: Path, tokens_per_microbatch: int, path: Path, ends: str) -> None:
    """Train with 700 MB more than at the start; it ends as "fits", or with exit code, number of updates and message of the error."""
    # An update is an epoch, with all its micro-batches; the third goes on while the state after the second is written.
    settings = changed(tokens_per_update=4000, tokens_per_microbatch=tokens_per_microbatch, updates=3, save_every=2, validate_every=2)
    size = TransformerSize(layers=1, d_model=8192, d_ff=64, heads=2, d_k=8, d_v=8, dropout=0.0)
    trainer = trainer_of(build(torch.float32, size), open_split(data / "train"), path, settings)
    here = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + 700_000_000,) * 2)
    ended = "fits"
    try:
        trainer.check_memory()
        trainer.run()
    except UserError as error:
        ended = f"{error.exit_code} {trainer.progress.update} {error}"
    assert ended.startswith(ends), ended


@pytest.mark.slow  # about 10 s: two processes
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on a process's memory")
@pytest.mark.parametrize(("tokens", "ends"), [(4000, TOO_MANY), (100, "fits")])
def test_memory_runs_out_at_the_start_or_never(data: Path, tmp_path: Path, processes: ForkServerContext, tokens: int, ends: str) -> None:
    run_ranks(processes, 1, train_in_little_memory, data, tokens, tmp_path, ends)


@pytest.mark.gpu
def test_gpu_memory_runs_out_before_the_first_update(split: BinarizedSplit, tmp_path: Path) -> None:
    wide = TransformerSize(layers=1, d_model=4096, d_ff=64, heads=2, d_k=8, d_v=8, dropout=0.0)
    trainer = trainer_of(build(size=wide, device="cuda"), split, tmp_path, changed(tokens_per_update=4000, tokens_per_microbatch=4000))
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 100_000_000) / total)
    try:
        with refused(78, "4,000 tokens do not fit the memory of this cuda"):
            trainer.check_memory()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert trainer.progress.update == 0


SAVING = changed(updates=14, save_every=2, validate_every=2)


def train_to_be_killed(data: Path, path: Path, saves: int) -> None:
    """Go on from the last state, and be killed when half of the state number `saves` from then on is written."""
    torch.set_num_threads(1)
    save, left = torch.save, [saves]

    def killing(state: object, file: Any) -> None:
        save(state, file)
        left[0] -= 1
        if left[0] == 0:
            (written,) = path.glob(".state-*.new")
            os.truncate(written, written.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save = killing
    trainer = trainer_of(build(), open_split(data / "train"), path, SAVING)
    trainer.resume()
    trainer.run()


@pytest.mark.usefixtures("one_thread")
def test_a_kill_in_a_save_costs_that_save_alone(data: Path, split: BinarizedSplit, tmp_path: Path, processes: ForkServerContext) -> None:
    straight, path = build(), tmp_path / "killed"
    trainer_of(straight, split, tmp_path / "straight", SAVING).run()
    for saves, whole in ((2, [2]), (3, [6, 4])):
        process = processes.Process(target=train_to_be_killed, args=(data, path, saves), daemon=True)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert [update_of(file) for file in state_files(path)] == whole
    trainer = resumed(split, path, SAVING)
    assert trainer.progress.update == 6
    trainer.run()
    assert torch.equal(weights(straight), weights(trainer.model))
    assert not list(path.glob(".*.new"))


STOPS = (6, 17)
# A rate of 0.08, as in the other tests, throws so small a model about; rounding then grows by a digit in 20 updates.
CALM = {"validate_every": 1, "learning_rate_factor": 0.1}


def be_rank(number: int, count: int, port: int, device: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Be one of so many ranks on this machine, as torchrun starts them, and do the work with the others."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= dict(zip(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"), map(str, (number, number, count, count)), strict=True))
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif torch.cuda.device_count() < count:  # NCCL refuses two ranks on one GPU.
        torch.distributed.init_process_group("gloo")
        work(Rank(number, count, torch.device(device)), *arguments)
        return
    with process_group(threads=1) as rank:
        work(rank, *arguments)
    assert not torch.distributed.is_initialized()


def run_ranks(processes: ForkServerContext, count: int, work: Callable[..., None], *arguments: Any, device: str = "cpu") -> None:
    """Run `work(rank, *arguments)` in so many processes; all end well."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    given = [(number, count, store.port, device, work, arguments) for number in range(count)]
    ranks = [processes.Process(target=be_rank, args=one, daemon=True) for one in given]
    for rank in ranks:
        rank.start()
    try:
        deadline = time.monotonic() + 120
        for rank in ranks:
            rank.join(timeout=max(0, deadline - time.monotonic()))
        assert [rank.exitcode for rank in ranks] == [0] * count  # None of a rank that waits for another one.
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def trained(
    rank: Rank, data: Path, path: Path, precision: str, stop_after: int = 10**6, resume: bool = False, **changes: Any
) -> dict[str, torch.Tensor]:
    """Train as one of the ranks: gradients and weights after each validation, and the weights at the end; empty if it was stopped."""
    model = build(torch.float64 if precision == "float64" else torch.float32, device=str(rank.device))
    settings = changed(precision=precision, **changes)
    found, after = [], []

    def validate() -> dict[str, float]:
        found.append(gradients(model).clone())
        after.append(weights(model))
        return {"nll": 0.0}

    def asked() -> bool:
        """Only the last rank is asked to stop; the others follow it, two updates later at most."""
        return rank.index == rank.world_size - 1 and trainer.progress.update + 1 > stop_after

    split = open_split(data / "train")
    dropout = BpeDropout(Subword.load(data / "spm.model"), split, settings) if settings.segments_anew else None
    trainer = Trainer(model, split, settings, rank, StateDirectory(path, 1), Observer(), validate, asked, bpe_dropout=dropout)
    assert trainer.resume() == resume
    try:
        trainer.run()
    except Interrupted:
        assert stop_after <= trainer.progress.update <= stop_after + 2, trainer.progress
        return {}
    return {"gradients": torch.stack(found).cpu(), "after": torch.stack(after).cpu(), "weights": weights(model).cpu()}


def of_rank(rank: Rank, data: Path, text: Path, out: Path) -> None:
    """Train in several ways, as one of the ranks; rank 0 writes what all of them found to `out`."""
    found: dict[str, Any] = {precision: trained(rank, data, out / precision, precision, **CALM) for precision in ("float64", "float32")}
    found["bpe_dropout"] = trained(rank, text, out / "bpe_dropout", "float64", bpe_dropout=0.3, modifiers={"typos": 0.3}, **CALM)
    found["r_drop"] = trained(rank, data, out / "r_drop", "float64", r_drop=5.0, **CALM)
    if rank.world_size == 1:
        found["alone"] = trained(rank, data, out / "alone", "float64", validate_every=24)["weights"]
    else:
        straight = trained(rank, data, out / "straight", "float32")["weights"]
        for stop in STOPS:
            trained(rank, data, out / f"stopped{stop}", "float32", stop_after=stop)
            found[f"stopped {stop}"] = torch.equal(straight, trained(rank, data, out / f"stopped{stop}", "float32", resume=True)["weights"])
        assert not trained(rank, data, out / "saved after each", "float32", stop_after=7, save_every=1)
        trained(rank, data, out / "handed over", "float64", stop_after=7)
    if rank.index == 0:
        torch.save(found, out / "found.pt")


@pytest.fixture(scope="module")
def of_devices(data: Path, text: Path, tmp_path_factory: pytest.TempPathFactory, processes: ForkServerContext) -> dict[int, Path]:
    """Results of 1, 2 and 3 processes, in a directory each."""
    directory = tmp_path_factory.mktemp("devices")
    outs = {devices: directory / str(devices) for devices in (1, 2, 3)}
    for devices, out in outs.items():
        out.mkdir()
        run_ranks(processes, devices, of_rank, data, text, out)
    return outs


@pytest.mark.slow  # about 10 s for this and the two below: four processes
@pytest.mark.parametrize(("run", "tolerance"), [("float64", 1e-10), ("float32", 1e-5), ("bpe_dropout", 1e-10), ("r_drop", 1e-10)])
def test_devices_find_the_gradients_of_one_dropout_on(of_devices: dict[int, Path], run: str, tolerance: float) -> None:
    """The first 20 updates: of 3 micro-batches, which 2 devices share unevenly, and one of 1, which leaves devices without a share."""
    alone, *others = (torch.load(out / "found.pt", weights_only=True)[run] for out in of_devices.values())
    assert alone["gradients"].shape[0] >= 20
    assert alone["gradients"][0].abs().max() > 0.01
    for found in others:
        for ours, one in zip(found["gradients"][:20], alone["gradients"][:20], strict=True):
            assert (ours - one).abs().max() <= tolerance * one.abs().max()
    if run != "float32":
        for found in others:
            assert (found["after"][:20] - alone["after"][:20]).abs().max() <= tolerance


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
def test_devices_resume_to_the_bit_and_one_goes_on_from_several(of_devices: dict[int, Path], split: BinarizedSplit, devices: int) -> None:
    """The sentences of each update after the stop decide the weights: those of one device that was never stopped, to rounding."""
    found = torch.load(of_devices[devices] / "found.pt", weights_only=True)
    assert {stop: found[f"stopped {stop}"] for stop in STOPS} == dict.fromkeys(STOPS, True)
    model = build(torch.float64)
    trainer = trainer_of(model, split, of_devices[devices] / "handed over", changed(precision="float64"))
    assert trainer.resume()
    assert 7 <= trainer.progress.update <= 9
    trainer.run()
    alone = torch.load(of_devices[1] / "found.pt", weights_only=True)["alone"]
    # Adam divides by roots of tiny gradients, which lifts the 1e-16 of the summation order by a few digits in 24 updates.
    assert torch.allclose(weights(model), alone, rtol=0, atol=1e-10)


def disagreeing(rank: Rank, data: Path, out: Path) -> None:
    """Train as ranks that differ in one thing at a time; each rank writes how every training ended, and the weights at the end of one."""
    ended: dict[str, Any] = {}

    def attempt(name: str, seed: int = 0, drift: float = 0.0, **changes: Any) -> None:
        torch.manual_seed(seed)
        model = Transformer(STILL, VOCAB)

        def validate() -> dict[str, float]:
            if drift and trainer.progress.update == 12:
                with torch.no_grad():
                    model.output_weight[0, 0] += drift
            return {"nll": 0.0}

        states = StateDirectory(out / (name if rank.index == 0 or name != "state" else "of another machine"), 2)
        try:
            trainer = Trainer(model, open_split(data / "train"), changed(**changes), rank, states, Observer(), validate, bool)
            trainer.resume()
            trainer.run()
        except UserError as error:
            ended[name] = f"{error.exit_code} {error}"
        else:
            ended[name] = weights(model)

    second = rank.index == 1
    attempt("precision", precision="fp16" if second else "bf16")
    version = torch.__version__
    torch.__version__ = "9.9" if second else version
    attempt("torch")
    torch.__version__ = version
    cuda = torch.version.cuda
    torch.version.cuda = "9.9" if second else cuda
    attempt("CUDA")
    torch.version.cuda = cuda
    attempt("state", updates=10 if second else 24)
    attempt("seed", seed=rank.index)
    attempt("drift", drift=1e-3 if second else 0.0)
    torch.save(ended, out / f"{rank.index}.pt")


@pytest.fixture(scope="module")
def disagreed(data: Path, split: BinarizedSplit, tmp_path_factory: pytest.TempPathFactory, processes: ForkServerContext) -> Path:
    """What two ranks that differ have written, see `disagreeing`. Only the second one has a state."""
    out = tmp_path_factory.mktemp("disagreed")
    trainer_of(build(size=STILL), split, out / "of another machine", changed(updates=10)).run()
    run_ranks(processes, 2, disagreeing, data, out)
    return out


def endings(disagreed: Path, name: str) -> list[Any]:
    """How a training of `disagreeing` ended on each rank."""
    return [torch.load(disagreed / f"{rank}.pt", weights_only=True)[name] for rank in range(2)]


@pytest.mark.slow  # about 10 s for this and the two below: three processes
@pytest.mark.parametrize(
    ("differing", "said"),
    [
        ("precision", "78 the ranks do not agree on precision: bf16 (rank 0), fp16 (rank 1). Take equal devices"),
        ("torch", f"78 the ranks do not agree on torch: {torch.__version__} (rank 0), 9.9 (rank 1). Take equal devices"),
        ("CUDA", f"78 the ranks do not agree on CUDA: {torch.version.cuda} (rank 0), 9.9 (rank 1). Take equal devices"),
        ("state", "78 the ranks do not agree on the update to resume after: 0 (rank 0), 10 (rank 1). Set $TRANSFORMER_STATE"),
    ],
)
def test_ranks_that_would_train_differently_are_refused(disagreed: Path, differing: str, said: str) -> None:
    of_ranks = endings(disagreed, differing)
    assert of_ranks[0].startswith(said)
    assert of_ranks[1] == of_ranks[0]


@pytest.mark.slow
def test_ranks_of_unlike_initial_weights_train_those_of_rank_0(disagreed: Path, split: BinarizedSplit, tmp_path: Path) -> None:
    of_ranks = endings(disagreed, "seed")
    assert torch.equal(*of_ranks)
    torch.manual_seed(0)
    alone = Transformer(STILL, VOCAB)
    trainer_of(alone, split, tmp_path).run()
    assert (of_ranks[0] - weights(alone)).abs().max() < 0.01 < weights(alone).abs().max()  # 24 updates in another order of summation.


@pytest.mark.slow
def test_ranks_whose_weights_drift_apart_save_nothing(disagreed: Path) -> None:
    """After the save of update 10 one weight of rank 1 changes; the next save would be that of update 20."""
    for said in endings(disagreed, "drift"):
        assert said.startswith("69 the ranks do not agree on the checksum of the weights after update 20: ")
    assert [update_of(file) for file in state_files(disagreed / "drift")] == [10]


def on_gpus(rank: Rank, data: Path, out: Path) -> None:
    """Train in bf16, once without a stop and once with one."""
    straight = trained(rank, data, out / "straight", "bf16", **CALM)
    trained(rank, data, out / "stopped", "bf16", stop_after=7, **CALM)
    again = trained(rank, data, out / "stopped", "bf16", resume=True, **CALM)
    if rank.index == 0:
        found = {"gradients": straight["gradients"], "resumed": torch.equal(straight["weights"], again["weights"])}
        torch.save(found, out / "found.pt")


@pytest.mark.gpu
def test_two_gpus_find_the_gradients_of_one_and_resume_to_the_bit(data: Path, tmp_path: Path, processes: ForkServerContext) -> None:
    outs = tmp_path / "1", tmp_path / "2"
    for count, out in enumerate(outs, 1):
        out.mkdir()
        run_ranks(processes, count, on_gpus, data, out, device="cuda")
    one, two = (torch.load(out / "found.pt", weights_only=True) for out in outs)
    # A micro-batch has the same gradients on any rank, and they are added up in float32.
    for ours, alone in zip(two["gradients"][:3], one["gradients"], strict=False):
        assert (ours - alone).abs().max() <= 1e-4 * alone.abs().max()
    assert one["resumed"]
    assert two["resumed"]


def test_memory_that_others_use_is_told_from_a_large_model(split: BinarizedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(build(), split, tmp_path)

    def lacking() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    for others, code in (("other processes use 70 of 80 GiB", 69), ("", 78)):
        monkeypatch.setattr(trainer_module, "used_by_others", lambda _, others=others: others)
        with refused(code):
            trainer.check_memory(lacking)
