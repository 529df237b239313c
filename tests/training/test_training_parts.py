"""Loss against torch's, schedule, states and checkpoints, averaging and the choice of the best."""

import math
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from tests.refusals import refused
from transformer_core.config import Train
from transformer_core.decoding.translator import load_for_decoding
from transformer_core.errors import ExitCode, Interrupted, UserError
from transformer_core.files import sha256_of
from transformer_core.models.attention import scaled_dot_product_attention
from transformer_core.models.embeddings import Dropout
from transformer_core.models.precision import choose_kernels
from transformer_core.training import checkpoint
from transformer_core.training import loss as loss_module
from transformer_core.training.checkpoint import (
    StateDirectory,
    average,
    best_updates,
    checkpoint_files,
    state_files,
    state_of,
    state_root,
    stopped_trainings,
    update_of,
    validations_since_best,
)
from transformer_core.training.devices import default_devices, default_threads, process_group
from transformer_core.training.loss import cross_entropy
from transformer_core.training.update import cooldown_factor, learning_rate


def test_the_rate_falls_in_equal_steps_over_the_last_updates() -> None:
    assert [cooldown_factor(update, updates=10, share=0.4) for update in range(1, 7)] == [1.0] * 6
    assert [cooldown_factor(update, updates=10, share=0.4) for update in range(7, 11)] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert [cooldown_factor(update, updates=10, share=0.0) for update in range(1, 11)] == [1.0] * 10


@pytest.mark.parametrize("cooldown", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("warmup", [1, 7, 20, 39, 40, 41, 90])
def test_the_highest_rate_is_that_of_all_updates(warmup: int, cooldown: float) -> None:
    for updates in (1, 2, 39, 40):
        rates = [learning_rate(u, 16, warmup, 1.0) * cooldown_factor(u, updates, cooldown) for u in range(1, updates + 1)]
        settings = Train.model_construct(updates=updates, warmup=warmup, cooldown=cooldown)
        assert settings.highest_rate == pytest.approx(max(rates) / learning_rate(warmup, 16, warmup, 1.0))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_sliced_cross_entropy_is_that_of_torch(label_smoothing: float, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    tokens = 2 * 2048 + 100  # three slices
    monkeypatch.setattr(loss_module, "_CACHED", 77 * 1000)  # some parts of a slice
    hidden = torch.randn(tokens, 12, dtype=torch.float64, requires_grad=True, device=device)
    weight = torch.randn(77, 12, dtype=torch.float64, requires_grad=True, device=device)
    targets = torch.randint(0, 77, (tokens,), device=device)
    logits = hidden @ weight.T
    # torch's smoothing spreads over all classes, the true one included: eps V / (V - 1) of it is eps on the others.
    expected = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing * 77 / 76)
    loss = cross_entropy(hidden, weight, targets, label_smoothing)
    assert loss.objective.item() == loss.smoothed.item() == pytest.approx(expected.item(), rel=1e-12)
    assert loss.nll.item() == pytest.approx(functional.cross_entropy(logits, targets, reduction="sum").item(), rel=1e-12)
    with torch.no_grad():
        scored = cross_entropy(hidden, weight, targets, label_smoothing)
    # On a GPU only a loss with gradients has kernels of its own.
    assert [scored.smoothed.item(), scored.nll.item()] == pytest.approx([loss.smoothed.item(), loss.nll.item()], rel=1e-12)
    assert scored.correct.item() == (logits.argmax(-1) == targets).sum().item() > 0
    gradients = (torch.autograd.grad(of * 3, (hidden, weight)) for of in (loss.objective, expected))
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-11)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_cross_entropy_of_a_large_vocabulary_does_not_overflow_in_fp16(device: str) -> None:
    """The sum of all logits of a slice is far above 65,504, the largest number of fp16. Autocast is on, as in training."""
    torch.manual_seed(0)
    hidden = (torch.randn(2048, 16, device=device) + 2).half().requires_grad_()
    weight = (torch.randn(6000, 16, device=device) * 0.1 - 0.03).half().float().requires_grad_()
    targets = torch.randint(0, 6000, (2048,), device=device)
    with torch.autocast(device, torch.float16):
        loss = cross_entropy(hidden, weight, targets, 0.1)
    exact = cross_entropy(hidden.detach().double(), weight.detach().double(), targets, 0.1)
    assert [loss.smoothed.item(), loss.nll.item()] == pytest.approx([exact.smoothed.item(), exact.nll.item()], rel=1e-3)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("label_smoothing", "alpha"), [(0.0, 5.0), (0.1, 1.0), (0.1, 0.0)])
def test_sliced_r_drop_is_half_of_the_papers_by_torch(
    label_smoothing: float, alpha: float, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    tokens = 2 * 1024 + 100  # three slices of two passes
    monkeypatch.setattr(loss_module, "_CACHED", 77 * 1000)  # some parts of a slice
    hidden = torch.randn(2 * tokens, 12, dtype=torch.float64, requires_grad=True, device=device)
    weight = torch.randn(77, 12, dtype=torch.float64, requires_grad=True, device=device)
    targets = torch.randint(0, 77, (tokens,), device=device)
    logits = hidden @ weight.T
    both = torch.cat((targets, targets))
    smoothed = functional.cross_entropy(logits, both, reduction="sum", label_smoothing=label_smoothing * 77 / 76) / 2
    first, second = logits.log_softmax(-1).split(tokens)
    # kl_div(x, y) is KL(y || x).
    divergences = [functional.kl_div(p, q, reduction="sum", log_target=True) for p, q in ((first, second), (second, first))]
    expected = smoothed + alpha / 4 * (divergences[0] + divergences[1])
    loss = cross_entropy(hidden, weight, targets, label_smoothing, alpha)
    assert loss.objective.item() == pytest.approx(expected.item(), rel=1e-12)
    assert loss.smoothed.item() == pytest.approx(smoothed.item(), rel=1e-12)
    assert loss.nll.item() == pytest.approx(functional.cross_entropy(logits, both, reduction="sum").item() / 2, rel=1e-12)
    gradients = (torch.autograd.grad(of * 3, (hidden, weight)) for of in (loss.objective, expected))
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-11)


def test_r_drop_of_two_equal_passes_is_the_cross_entropy() -> None:
    """In float32, a rounding of 1e-7 of the largest terms is left of the divergence, whatever its weight of a few units."""
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(300, 12), torch.randn(77, 12), torch.randint(0, 77, (300,))
    found = []
    for once in (True, False):
        given = hidden.clone().requires_grad_()
        loss = cross_entropy(given, weight, targets, 0.1) if once else cross_entropy(torch.cat((given, given)), weight, targets, 0.1, 5.0)
        found.append((loss.objective.detach(), loss.nll, *torch.autograd.grad(loss.objective, given)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_training_has_a_fingerprints_name_whatever_lies_beside_it(tmp_path: Path) -> None:
    """`states --remove all` removes what is found; $TRANSFORMER_STATE may be a folder with other things in it."""
    ours, root = state_of("0123456789abcdef" * 4, tmp_path), state_root(tmp_path)
    for folder in (ours, root / "fairseq", root / "0123456789abcdef.old", root / "0123456789ABCDEF"):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "state-00000001.pt").touch()
    assert stopped_trainings(root) == [ours]


def test_a_damaged_newest_state_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    states = StateDirectory(tmp_path, keep=2)
    for update in (10, 20, 30):
        states.save(update, {"value": torch.tensor(update)})
    states.wait()
    assert len(state_files(tmp_path)) == 2
    newest = tmp_path / "state-00000030.pt"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert [state["update"] for state in states.states()] == [20]
    (tmp_path / "state-00000020.sha256").unlink()  # as if killed between the file and its sum
    assert not list(states.states())
    states.save_checkpoint(30, {"value": torch.tensor(30.0)})
    states.wait()
    states.remove_after(0)  # The training begins anew.
    assert not checkpoint_files(states.checkpoints)
    states.save(10, {"value": torch.tensor(1)})
    states.wait()
    assert [state["update"] for state in states.states()] == [10]
    assert [update_of(file) for file in state_files(tmp_path)] == [10]


def test_a_state_that_is_damaged_though_its_sum_is_right_is_passed_over(tmp_path: Path) -> None:
    states = StateDirectory(tmp_path, keep=2)
    for update in (10, 20):
        states.save(update, {"value": torch.tensor(update)})
    states.wait()
    newest = tmp_path / "state-00000020.pt"
    whole = newest.read_bytes()
    for content in (b"", b"x", whole[:-50], whole[:200] + bytes(200) + whole[400:]):
        newest.write_bytes(content)
        newest.with_suffix(".sha256").write_text(sha256_of(newest), encoding="ascii")
        assert [state["update"] for state in states.states()] == [10]


def test_a_state_is_of_the_moment_it_was_saved_in(tmp_path: Path) -> None:
    states = StateDirectory(tmp_path, keep=1)
    weight = torch.zeros(1_000_000)
    for update in range(1, 6):
        weight += 1
        states.save(update, {"deep": [{"weight": weight}]})
        states.save_checkpoint(update, {"weight": weight})
        weight += 100
        weight -= 100
    weight.fill_(-1)
    states.wait()
    newest = next(states.states())
    assert newest["update"] == 5
    assert torch.equal(newest["deep"][0]["weight"], torch.full_like(weight, 5))
    assert torch.equal(load_file(checkpoint_files(states.checkpoints)[0])["weight"], torch.full_like(weight, 5))


def test_a_disk_that_fails_ends_the_training_and_not_only_its_thread(tmp_path: Path) -> None:
    states = StateDirectory(tmp_path / "file", keep=1)
    (tmp_path / "file").write_text("", encoding="utf-8")
    states.save(1, {"value": 1})
    with pytest.raises(OSError, match="file"):
        states.wait()


def test_the_last_checkpoints_and_those_asked_for_are_kept(tmp_path: Path) -> None:
    states = StateDirectory(tmp_path, keep=2)
    for update, best in ((1, [1]), (2, [1]), (3, [3, 1]), (4, [3, 1]), (5, [3, 5]), (6, [3, 5])):
        states.save_checkpoint(update, {"weight": torch.tensor([float(update)])}, best)
    states.wait()
    assert [update_of(file) for file in checkpoint_files(states.checkpoints)] == [3, 5, 6]


def test_an_average_is_the_mean_in_float64_whatever_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_SLICE", 300)  # Three whole slices and a shorter one.
    torch.manual_seed(0)
    tensors = [torch.randn(20, 50) * 10.0**exponent for exponent in range(-3, 4)]
    states = StateDirectory(tmp_path, keep=10)
    for update, tensor in enumerate(tensors):
        states.save_checkpoint(update, {"weight": tensor})
    states.wait()
    files = checkpoint_files(states.checkpoints)
    mean = average(files)["weight"]
    exact = [math.fsum(values) / len(tensors) for values in zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)]
    assert torch.equal(mean, torch.tensor(exact, dtype=torch.float64).float().view(20, 50))
    for shift in range(1, len(files)):
        assert torch.equal(average(files[shift:] + files[:shift])["weight"], mean)


def test_what_is_no_checkpoint_of_the_same_model_is_not_averaged(tmp_path: Path) -> None:
    whole, other = tmp_path / "update-1.safetensors", tmp_path / "update-2.safetensors"
    save_file({"weight": torch.ones(3)}, whole)
    for weights, fault in (
        ({"weight": torch.ones(4)}, "not of the same model as"),
        ({"bias": torch.ones(3)}, "not of the same model as"),
        ({"weight": torch.ones(3, dtype=torch.int64)}, "weight holds numbers of the type int64"),
        ({"weight": torch.tensor([1.0, math.nan, 1.0])}, "update-2.safetensors: weight holds values that are not finite"),
    ):
        save_file(weights, other)
        with pytest.raises(UserError, match=fault):
            average([whole, other])
    other.write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"update-2\.safetensors: damaged"):
        average([whole, other])


def test_the_best_validations_are_those_of_the_measure() -> None:
    scores = {100: 3.0, 200: 5.0, 300: 4.0, 400: 5.0}
    assert best_updates(scores, "bleu", 3) == [200, 400, 300]
    assert best_updates(scores, "accuracy", 1) == [200]
    assert best_updates(scores, "nll", 2) == best_updates(scores, "perplexity", 2) == [100, 300]
    assert [validations_since_best(scores, measure) for measure in ("bleu", "nll")] == [2, 3]
    assert validations_since_best({}, "bleu") == 0
    broken = {50: math.nan, 100: 3.0, 200: math.nan, 300: 2.0}
    assert best_updates(broken, "nll", 2) == [300, 100]
    assert best_updates(broken, "bleu", 2) == [100, 300]


def test_devices_by_default_are_what_the_machine_has_but_no_more_than_micro_batches() -> None:
    here = torch.cuda.device_count() if torch.cuda.is_available() else len(os.sched_getaffinity(0))
    assert [default_devices(microbatches) for microbatches in (1, here, 1000 * here)] == [1, here, here]


def test_no_training_runs_on_the_cpus_of_a_machine_whose_gpus_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with refused(ExitCode.UNAVAILABLE, "none of the 8 GPUs"), process_group(threads=1):
        pass


@pytest.mark.parametrize(("ended_by", "leaves"), [(None, True), (Interrupted("stopped"), True), (OSError("no space"), False)])
def test_a_rank_leaves_the_group_only_with_all_others(monkeypatch: pytest.MonkeyPatch, ended_by: Exception | None, leaves: bool) -> None:
    """NCCL's group can only be destroyed by all of its ranks together, and an error may be that of one alone."""
    calls: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, device_id: calls.append(f"{backend} {device_id}"))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: calls.append("left"))
    with suppress(Interrupted, OSError), process_group(threads=1):
        if ended_by:
            raise ended_by
    assert calls == ["nccl cuda:0" if torch.cuda.is_available() else "gloo None", *(["left"] if leaves else [])]


@pytest.mark.parametrize("chooses", ["training", "decoding"])
def test_kernels_of_cudnn_that_are_slow_or_inexact_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chooses: str) -> None:
    """On a GPU, or on a machine that says it has one: flags are set before CUDA is used."""
    before = torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.allow_tf32
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.cudnn.allow_tf32 = True
    try:
        if chooses == "training":
            monkeypatch.setattr("torch.cuda.is_available", lambda: True)
            monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
            monkeypatch.setattr("torch.cuda.set_device", lambda *_: None)
            with process_group(threads=1) as rank:
                assert rank.device.type == "cuda"
        else:
            with pytest.raises(UserError, match=re.escape(str(tmp_path))):
                load_for_decoding(tmp_path, device=torch.device("cuda"))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.gpu
@pytest.mark.parametrize("length", [64, 192])
def test_gradients_of_attention_in_bf16_are_near_those_of_float32(length: int) -> None:
    """All scores are about -120: at these lengths the gradients of cuDNN, which is switched off, were then NaN."""
    device = torch.device("cuda")
    choose_kernels(device)
    torch.manual_seed(0)
    query, key, value, weight = (torch.randn(8, 2, length, 64, device=device) for _ in range(4))
    query, key = 0.1 * query, 0.1 * key
    query[..., 0], key[..., 0] = 1.0, -120 * 64**0.5
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [drawn.bfloat16().to(dtype).requires_grad_() for drawn in (query, key, value)]
        scaled_dot_product_attention(*inputs, mask, Dropout(0.0)).backward(weight.bfloat16().to(dtype))
        found.append([one.grad.float() for one in inputs if one.grad is not None])
    for exact, rounded in zip(*found, strict=True):
        assert rounded.isfinite().all()
        # Without the first column: for queries it is 0 but for rounding, which the great keys multiply.
        assert (rounded - exact)[..., 1:].abs().max() <= 0.05 * exact[..., 1:].abs().max()


def test_threads_by_default_share_the_cores_and_are_never_none() -> None:
    cores = len(os.sched_getaffinity(0))
    assert [default_threads(devices) for devices in (1, cores, 2 * cores)] == [cores, 1, 1]
