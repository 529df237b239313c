"""The start from another vocabulary, loss, schedule, states and checkpoints, averaging, validation and the choice of the best."""

import errno
import math
import os
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from tests.corpus.encoded import learnt_subword, write_binarized
from tests.models.on_disk import SMALL, TEXT, VOCAB
from tests.refusals import refused
from tests.waiting import wait_for
from transformer_core import recipes
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.corpus.tokens.subword import EOS
from transformer_core.errors import ExitCode, UserError
from transformer_core.files import locked, sha256_of
from transformer_core.models.architectures import build
from transformer_core.models.attention import scaled_dot_product_attention
from transformer_core.models.embeddings import Dropout
from transformer_core.models.precision import choose_kernels
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import TransformerSize
from transformer_core.tasks import TRANSLATION
from transformer_core.training import checkpoint, validation
from transformer_core.training import loss as loss_module
from transformer_core.training.checkpoint import StateDirectory, average, best_updates, checkpoint_files, state_files, update_of
from transformer_core.training.devices import Rank, process_group
from transformer_core.training.loss import cross_entropy
from transformer_core.training.start import take_over
from transformer_core.training.update import cooldown_factor


def test_the_rate_falls_in_equal_steps_over_the_last_updates() -> None:
    assert [cooldown_factor(update, updates=10, share=0.4) for update in range(1, 7)] == [1.0] * 6
    assert [cooldown_factor(update, updates=10, share=0.4) for update in range(7, 11)] == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert [cooldown_factor(update, updates=10, share=0.0) for update in range(1, 11)] == [1.0] * 10


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("label_smoothing", "alpha"), [(0.0, 0.0), (0.1, 0.0), (0.0, 5.0), (0.1, 1.0)])
def test_the_sliced_loss_is_that_of_torch(label_smoothing: float, alpha: float, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one pass, and of R-Drop's two: half of the paper's, whose terms are of both."""
    torch.manual_seed(0)
    passes = 2 if alpha else 1
    tokens = 2 * 2048 // passes + 100  # three slices
    monkeypatch.setattr(loss_module, "_CACHED", 77 * 1000)  # some parts of a slice
    hidden = torch.randn(passes * tokens, 12, dtype=torch.float64, requires_grad=True, device=device)
    weight = torch.randn(77, 12, dtype=torch.float64, requires_grad=True, device=device)
    targets = torch.randint(0, 77, (tokens,), device=device)
    logits, wanted = hidden @ weight.T, targets.repeat(passes)
    # torch's smoothing spreads over all classes, the true one included: eps V / (V - 1) of it is eps on the others.
    smoothed = functional.cross_entropy(logits, wanted, reduction="sum", label_smoothing=label_smoothing * 77 / 76) / passes
    nll = functional.cross_entropy(logits, wanted, reduction="sum") / passes
    expected = smoothed
    if alpha:
        first, second = logits.log_softmax(-1).split(tokens)
        # kl_div(x, y) is KL(y || x).
        divergences = [functional.kl_div(p, q, reduction="sum", log_target=True) for p, q in ((first, second), (second, first))]
        expected = smoothed + alpha / 4 * (divergences[0] + divergences[1])
    loss = cross_entropy(hidden, weight, targets, label_smoothing, alpha)
    found = [loss.objective.item(), loss.smoothed.item(), loss.nll.item()]
    assert found == pytest.approx([expected.item(), smoothed.item(), nll.item()], rel=1e-12)
    gradients = (torch.autograd.grad(of * 3, (hidden, weight)) for of in (loss.objective, expected))
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-11)
    with torch.no_grad():
        scored = cross_entropy(hidden, weight, targets, label_smoothing, alpha)
    # On a GPU only a loss with gradients has kernels of its own.
    assert [scored.smoothed.item(), scored.nll.item()] == pytest.approx(found[1:], rel=1e-12)
    assert scored.correct.item() == (logits.argmax(-1) == wanted).sum().item() / passes > 0


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


def test_a_training_has_a_fingerprints_name_whatever_lies_beside_it(tmp_path: Path) -> None:
    """`states --remove all` removes what is found; $TRANSFORMER_STATE may be a folder with other things in it."""
    ours, root = checkpoint.state_of("0123456789abcdef" * 4, tmp_path), checkpoint.state_root(tmp_path)
    for folder in (ours, root / "fairseq", root / "0123456789abcdef.old", root / "0123456789ABCDEF"):
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "state-00000001.pt").touch()
    assert checkpoint.stopped_trainings(root) == [ours]


def test_a_damaged_newest_state_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    states = StateDirectory(tmp_path, keep=2)
    for update in (10, 20, 30):
        states.save(update, {"value": torch.tensor(update)})
    states.wait()
    assert len(state_files(tmp_path)) == 2
    newest = tmp_path / "state-00000030.pt"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    assert [state["update"] for state in states.states()] == [20]
    for content in (b"", whole[:-50], whole[:200] + bytes(200) + whole[400:]):  # Damaged before its sum was written.
        newest.write_bytes(content)
        newest.with_suffix(".sha256").write_text(sha256_of(newest), encoding="ascii")
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
    assert [checkpoint.validations_since_best(scores, measure) for measure in ("bleu", "nll")] == [2, 3]
    assert checkpoint.validations_since_best({}, "bleu") == 0
    broken = {50: math.nan, 100: 3.0, 200: math.nan, 300: 2.0}
    assert best_updates(broken, "nll", 2) == [300, 100]
    assert best_updates(broken, "bleu", 2) == [100, 300]


def test_no_training_runs_on_the_cpus_of_a_machine_whose_gpus_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with refused(ExitCode.UNAVAILABLE, "none of the 8 GPUs"), process_group(threads=1):
        pass


@pytest.mark.parametrize(("given", "used"), [(None, "^NVLS,NVLSTree"), ("Ring", "Ring")])
def test_the_switch_between_gpus_adds_up_nothing(given: str | None, used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its order of summation changes, and a resumed training would not be equal bit for bit. NCCL reads the variable as it starts."""
    monkeypatch.setattr(os, "environ", {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} | ({"NCCL_ALGO": given} if given else {}))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("transformer_core.training.devices.choose_kernels", lambda _: None)
    for call in ("torch.cuda.set_device", "torch.distributed.new_group", "torch.distributed.destroy_process_group"):
        monkeypatch.setattr(call, lambda *_, **__: None)
    seen = []
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, **_: seen.append((backend, os.environ["NCCL_ALGO"])))
    with process_group(threads=torch.get_num_threads()):
        assert seen == [("nccl", used)]


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


class Disk:
    """A disk that is full from the next write on, for as many as it says, and then slow until `let_go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full: int = 0, slow: bool = False) -> None:
        self.full, self.written, self.let_go = full, list[int](), Event()
        save = torch.save

        def write(state: dict[str, Any], file: Any) -> None:
            self.written.append(state["update"])
            if slow:
                self.let_go.wait(60)
            self.full -= 1
            if self.full >= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            save(state, file)

        monkeypatch.setattr(torch, "save", write)


def test_a_stop_writes_its_own_state_and_none_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, states = Disk(monkeypatch, slow=True), StateDirectory(tmp_path, keep=1)
    states.save(10, {})
    wait_for(lambda: disk.written)
    states.save(20, {})
    waiting = states._newest_state
    Thread(target=lambda: wait_for(waiting.cancelled) and disk.let_go.set(), daemon=True).start()
    states.save(30, {}, last=True)
    states.wait()
    assert disk.written == [10, 30]


def test_what_a_full_disk_refuses_is_written_with_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, states = Disk(monkeypatch, full=2), StateDirectory(tmp_path, keep=5)
    for update in (10, 20, 30):
        states.save(update, {})
        states.save_checkpoint(update, {"weight": torch.ones(1)})
        states._wait_for_writes(0)
    states.wait()
    assert disk.written == [10, 10, 20, 30]
    assert [update_of(file) for file in checkpoint_files(states.checkpoints)] == [10, 20, 30]
    disk.full = 100
    for update in (40, 50):
        states.save(update, {})
        states._wait_for_writes(0)
    with refused(69, "the disk is full, the last save has failed"):
        states.wait()
    with refused(69, "the disk is full, 3 saves in a row have failed"):
        states.save(60, {})
        states.wait()


def test_a_state_that_the_disk_has_no_room_for_is_told_as_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own error would not give the reason."""
    save, full = torch.save, Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115
    monkeypatch.setattr(torch, "save", lambda state, _: save(state, full))
    states = StateDirectory(tmp_path, keep=1)
    states.save(10, {"weight": torch.ones(10_000)})
    with refused(69, "the disk is full"):
        states.wait()


def test_a_writer_whose_lock_was_lost_writes_nothing_after_another_has_begun(tmp_path: Path) -> None:
    first, second = StateDirectory(tmp_path, keep=1), StateDirectory(tmp_path, keep=1)
    for update, states in ((10, first), (20, second)):
        states.claim()
        states.save(update, {})
        states.wait()
    with refused(69, f"process {os.getpid()} on .+ since .+ trains this"):
        first.save(30, {})
        first.wait()
    assert [update_of(file) for file in state_files(tmp_path)] == [20, 10]


def test_the_state_of_a_training_that_runs_is_not_removed(tmp_path: Path) -> None:
    state = tmp_path / "0123456789abcdef"
    with locked(state / checkpoint.TRAINING_LOCK, "this training"), refused(69, "this training is running"):
        checkpoint.remove_training(state)
    assert state.exists()
    checkpoint.remove_training(state)
    assert not list(tmp_path.iterdir())


def validation_of(model: TranslationModel, folder: Path) -> validation.Validation:
    """The validation of a model on the split train in a folder, in float64."""
    subword = learnt_subword(TEXT, folder / "spm.model")
    settings, rank = recipes.load("tatoeba").train.model_copy(update={"precision": "float64"}), Rank(0, 1, torch.device("cpu"))
    return validation.Validation(model, open_split(folder / "train"), subword, [""] * 10, settings, TRANSLATION, rank, bool)


@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_as_long_as_a_document_has_no_part_in_the_scores(side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_INPUT", 20)
    torch.manual_seed(0)
    model = build(SMALL, VOCAB).double()
    sides = [[[5 + number, 6, 7, EOS] for number in range(9)], [[8, 9 + number, EOS] for number in range(9)]]
    write_binarized(tmp_path / "short", *sides, VOCAB)
    sides[side].insert(4, [*[9] * 21, EOS])
    sides[1 - side].insert(4, [9, EOS])
    write_binarized(tmp_path / "long", *sides, VOCAB)
    short, long = (validation_of(model, tmp_path / name) for name in ("short", "long"))
    assert (short.left_out, long.left_out) == (0, 1)
    assert short.teacher_forced() == long.teacher_forced()


def test_the_gain_by_the_source_is_the_loss_with_the_sources_of_other_pairs_less_that_with_its_own(tmp_path: Path) -> None:
    """Of pairs of equal lengths, all in one batch; without attention to the source there is none."""
    torch.manual_seed(0)
    model = build(SMALL, VOCAB).double()
    write_binarized(tmp_path / "ten", [[5 + n, 6 + n, EOS] for n in range(10)], [[9 + n, 8, 7, EOS] for n in range(10)], VOCAB)
    valid = validation_of(model, tmp_path / "ten")
    gain, (order,) = (valid.teacher_forced() or {})["source_gain"], valid._microbatches
    with torch.no_grad():
        losses = [[float(valid._losses(order[[place - moved]], order[[place]]).nll) for place in range(10)] for moved in (1, 0)]
    assert gain == pytest.approx((sum(losses[0]) - sum(losses[1])) / 40, abs=1e-9)
    assert abs(gain) > 1e-6
    model.get_parameter("decoder.0.cross_attention.output.weight").data.zero_()
    assert (valid.teacher_forced() or {})["source_gain"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("tied", ["all", "none"])
def test_shared_subwords_keep_their_rows_and_everything_else_is_the_parents(tied: str) -> None:
    size = TransformerSize(layers=1, d_model=8, d_ff=16, heads=2, d_k=4, d_v=4, dropout=0.0, tied=tied, output_bias=True)
    parent, model = build(size, 5), build(size, 5)
    torch.nn.init.normal_(parent.output_bias)
    trained, fresh = parent.state_dict(), {name: weight.clone() for name, weight in model.state_dict().items()}
    assert take_over(model, parent, size, ["<pad>", "<s>", "a", "b", "c"], ["<pad>", "<s>", "c", "d", "a"]) == 4
    over_vocabulary = {name for name in fresh if "embedding" in name or name in ("projection.weight", "output_bias")}
    assert len(over_vocabulary) == {"all": 2, "none": 4}[tied]
    for name, weight in model.state_dict().items():
        if name in over_vocabulary:
            assert torch.equal(weight[[0, 1, 2, 4]], trained[name][[0, 1, 4, 2]])
            assert torch.equal(weight[3], fresh[name][3])
        else:
            assert torch.equal(weight, trained[name])
