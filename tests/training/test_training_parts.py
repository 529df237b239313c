"""Loss, schedule, checkpoints and averaging, each against a formula written out by hand."""

import os
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from transformer_core.errors import UserError
from transformer_core.training.averaging import average_last
from transformer_core.training.checkpoint import StateDirectory, checkpoint_files
from transformer_core.training.devices import default_devices, default_threads
from transformer_core.training.loss import cross_entropy
from transformer_core.training.schedule import learning_rate


@pytest.mark.parametrize(("update", "rate"), [(1, 1.7469281e-07), (4000, 6.9877124e-04), (100_000, 1.3975425e-04)])
def test_learning_rate_of_base_at_the_papers_steps(update: int, rate: float) -> None:
    # d_model^-0.5 = 0.0441942; 4000^-1.5 = 3.952847e-6; 4000^-0.5 = 0.0158114; 100000^-0.5 = 0.00316228.
    assert learning_rate(update, d_model=512, warmup=4000, factor=1.0) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_sliced_cross_entropy_is_the_whole_one(label_smoothing: float) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(1300, 12, dtype=torch.float64, requires_grad=True)  # more than two slices
    weight = torch.randn(77, 12, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 77, (1300,))
    smoothed = torch.full((1300, 77), label_smoothing / 76, dtype=torch.float64).scatter(1, targets[:, None], 1 - label_smoothing)
    logits = hidden @ weight.T
    expected = -(smoothed * logits.log_softmax(-1)).sum()
    loss = cross_entropy(hidden, weight, targets, label_smoothing)
    assert loss.smoothed.item() == pytest.approx(expected.item(), rel=1e-12)
    assert loss.nll.item() == pytest.approx(functional.cross_entropy(logits, targets, reduction="sum").item(), rel=1e-12)
    assert loss.correct.item() == (logits.argmax(-1) == targets).sum().item()
    for ours, theirs in zip(
        torch.autograd.grad(loss.smoothed * 3, (hidden, weight)), torch.autograd.grad(expected * 3, (hidden, weight)), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-11)


def test_label_smoothing_of_one_token_by_hand() -> None:
    # Logits (2, 0, 0), truth 0, eps 0.1: 0.9 on the truth and 0.05 on each other; log-softmax is 2 - log(e^2 + 2) and -log(e^2 + 2).
    weight = torch.tensor([[2.0], [0.0], [0.0]], dtype=torch.float64)
    loss = cross_entropy(torch.ones(1, 1, dtype=torch.float64), weight, torch.tensor([0]), 0.1)
    normaliser = torch.tensor(2.0).double().exp().add(2).log().item()
    assert loss.smoothed.item() == pytest.approx(-(0.9 * (2 - normaliser) + 0.1 * -normaliser), rel=1e-12)


def test_a_damaged_newest_state_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    states = StateDirectory(tmp_path, keep=2)
    for update in (10, 20, 30):
        states.save(update, {"value": torch.tensor(update)})
    assert len(list(tmp_path.glob("state-*.pt"))) == 2
    newest = tmp_path / "state-00000030.pt"
    newest.write_bytes(newest.read_bytes()[:-1])
    state = states.load_newest()
    assert state is not None
    assert state["update"] == 20
    (tmp_path / "state-00000020.sha256").unlink()  # as if killed between the file and its sum
    assert states.load_newest() is None


def test_only_the_last_checkpoints_are_kept_and_averaged(tmp_path: Path) -> None:
    states = StateDirectory(tmp_path, keep=3)
    for update in range(1, 6):
        states.save_checkpoint(update, {"weight": torch.full((2,), float(update)), "other": torch.tensor([update / 3])})
    assert [file.name for file in checkpoint_files(states.checkpoints)] == [f"update-{n:08d}.safetensors" for n in (3, 4, 5)]
    mean = average_last(states.checkpoints, 2)
    assert torch.equal(mean["weight"], torch.full((2,), 4.5))
    assert mean["other"].item() == pytest.approx(1.5, rel=1e-7)
    with pytest.raises(UserError, match=r"3 checkpoints, average\.last asks for 4"):
        average_last(states.checkpoints, 4)


def test_devices_by_default_are_what_the_machine_has_but_no_more_than_micro_batches() -> None:
    here = torch.cuda.device_count() if torch.cuda.is_available() else len(os.sched_getaffinity(0))
    assert [default_devices(microbatches) for microbatches in (1, here, 1000 * here)] == [1, here, here]


def test_threads_by_default_share_the_cores_and_are_never_none() -> None:
    cores = len(os.sched_getaffinity(0))
    assert [default_threads(devices) for devices in (1, cores, 2 * cores)] == [cores, 1, 1]
