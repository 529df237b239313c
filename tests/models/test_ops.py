"""What makes the model fast gives the outputs and gradients of the model's page."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transformer_core.corpus.tokens.batches import BatchPlan
from transformer_core.corpus.tokens.binary import Pairs
from transformer_core.models.attention import scaled_dot_product_attention
from transformer_core.models.embeddings import Dropout
from transformer_core.models.ops.choice import can_pack, prepare_for_training
from transformer_core.models.ops.packed import PackedBatch, on_device
from transformer_core.models.ops.packed_transformer import LONGEST_OF_SHORT, LowCopies, PackedTransformer
from transformer_core.models.ops.padded_attention import of_hypotheses
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.training.loader import Batch, make_batch, make_packed_batch, make_twice, packed_shape
from transformer_core.training.loss import cross_entropy
from transformer_core.training.update import ReductionBuffer

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.0)
VOCAB = 30
CPU = torch.device("cpu")


def pairs_of(lengths: list[tuple[int, int]], seed: int = 0) -> Pairs:
    random = np.random.default_rng(seed)
    sides = [[np.array([*random.integers(4, VOCAB, length - 1), 3], np.uint32) for length in side] for side in zip(*lengths, strict=True)]
    return Pairs(np.arange(len(lengths)), *sides)


def found(model: Transformer, batch: Batch | PackedBatch, kernels: bool = False) -> tuple[Tensor, Tensor]:
    """Outputs at the target tokens, and the gradients of the smoothed loss."""
    model.zero_grad()
    decoded = PackedTransformer(model, kernels)(batch) if isinstance(batch, PackedBatch) else batch.decoded(model)
    cross_entropy(decoded, model.output_weight, batch.targets, 0.1).objective.backward()
    return decoded.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("low", [None, torch.bfloat16])
@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"positions": "learned", "most_positions": 20}, {"d_v": 4, "tied": "none"}])
def test_attention_of_a_training_on_a_cpu_is_the_pages(changes: dict[str, object], low: torch.dtype | None) -> None:
    """To the bit in float32; within autocast as near to float32 as the page is."""
    torch.manual_seed(0)
    model, batch = Transformer(replace(SIZE, **changes), VOCAB), make_batch(pairs_of([(7, 9), (3, 4), (12, 5)]))  # type: ignore[arg-type]
    exact = found(model, batch)
    with torch.autocast("cpu", low or torch.float32, enabled=low is not None):
        page = found(model, batch)
        prepare_for_training(model, CPU, "float32")
        fast = found(model, batch)
    for want, theirs, ours in zip(exact, page, fast, strict=True):
        error, bound = ((part.float() - want).norm() for part in (ours, theirs))
        assert error <= 1.5 * bound
        assert low or torch.equal(ours, want)


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"positions": "learned", "most_positions": 20}, {"tied": "decoder"}])
@settings(max_examples=25)  # For each of the four.
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=8))
def test_packed_outputs_and_gradients_are_those_of_padded_batches(changes: dict[str, object], lengths: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    model = Transformer(replace(SIZE, **changes), VOCAB).double()  # type: ignore[arg-type]
    pairs = pairs_of(lengths)
    padded, packed = found(model, make_batch(pairs)), found(model, make_packed_batch(pairs))
    for expected, ours in zip(padded, packed, strict=True):
        assert torch.allclose(expected, ours, rtol=0, atol=1e-10)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=8), st.sampled_from([320, 1000]))
def test_filling_adds_sentences_behind_the_others_up_to_an_eighth_of_the_budget(lengths: list[tuple[int, int]], budget: int) -> None:
    plain, filled = (make_packed_batch(pairs_of(lengths), number) for number in (None, budget))
    shape = packed_shape(*np.array(lengths).T, budget)
    for real, side, tokens in ((plain.source, filled.source, shape.source_tokens), (plain.shifted, filled.shifted, shape.target_tokens)):
        assert len(side.tokens) == tokens
        assert len(real.tokens) <= tokens < max(budget / 2, len(real.tokens) + budget / 8) + 64
        assert torch.equal(side.tokens[: len(real.tokens)], real.tokens)
        assert torch.equal(side.starts[: len(lengths) + 1], real.starts)
        assert side.starts[-1] == len(side.tokens)
        assert len(side.starts) == shape.sentences + 1
        # No more positions than a model may have learned.
        assert 0 <= side.starts.diff().min() <= side.starts.diff().max() <= max(map(max, lengths)) <= side.longest == shape.longest
        assert torch.equal(side.positions, torch.cat([torch.arange(length) for length in side.starts.diff().tolist()]))
    assert torch.equal(filled.targets[: len(plain.targets)], plain.targets)
    assert (filled.targets[len(plain.targets) :] == -1).all()


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_the_papers_recipe_needs_few_shapes_and_little_filling(ranks: int) -> None:
    """Two epochs of 25,000 tokens an update: log-normal lengths with means as in WMT, and targets 0.6 to 1.8 times as long as sources."""
    random, budget = np.random.default_rng(0), 25_000 // ranks
    drawn = random.lognormal(math.log(27) - 0.18, 0.6, 300_000)
    longer = drawn * random.lognormal(math.log(29 / 27), 0.3, len(drawn))
    sources, targets = (side.round().clip(1, 256).astype(np.int64) for side in (drawn, longer))
    plan = BatchPlan(sources, targets, 25_000, budget, seed=1)
    microbatches = [pairs for epoch in range(2) for update in plan.epoch(epoch) for pairs in update.microbatches]
    shapes = [packed_shape(sources[pairs], targets[pairs], budget) for pairs in microbatches]
    assert len(set(shapes)) <= 64
    tokens = sum(shape.source_tokens + shape.target_tokens for shape in shapes)
    assert 0 < 1 - 2 * (sources.sum() + targets.sum()) / tokens < 0.08


def test_twice_is_every_sentence_again() -> None:
    pairs = pairs_of([(3, 5), (7, 2), (1, 1)])
    packed = PackedTransformer(Transformer(SIZE, VOCAB).double(), kernels=False)
    once, again = packed(make_packed_batch(pairs)).expand(2, -1, -1).flatten(0, 1), packed(make_twice(pairs, make_packed_batch))
    assert torch.allclose(once, again, rtol=0, atol=1e-12)


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"tied": "none", "positions": "learned", "most_positions": 20}])
def test_copies_in_low_precision_have_the_gradients_of_autocast(changes: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = Transformer(replace(SIZE, **changes), VOCAB)  # type: ignore[arg-type]
    batch = make_packed_batch(pairs_of([(7, 9), (3, 4), (12, 5)]))
    with torch.autocast("cpu", torch.bfloat16):
        found(model, batch)
    expected = {name: weight.grad for name, weight in model.named_parameters()}
    copies = LowCopies(PackedTransformer(model, kernels=False), torch.bfloat16)
    others = [weight for weight in model.parameters() if all(weight is not one for one in copies.originals)]
    buffer = ReductionBuffer([*copies.originals, *others], CPU)
    with torch.autocast("cpu", torch.bfloat16):
        decoded = copies.decoded(batch)
        cross_entropy(decoded, model.output_weight, batch.targets, 0.1).objective.backward()
    copies.add_gradients(buffer.gradients)
    for name, weight in model.named_parameters():
        assert torch.equal(weight.grad, expected[name]), name


@pytest.mark.parametrize("changes", [{"attention_dropout": 0.1}, {"d_v": 4}, {"d_k": 4, "d_v": 4}, {"d_k": 208, "d_v": 208}])
def test_what_flash_attention_cannot_do_is_padded(changes: dict[str, object]) -> None:
    assert can_pack(SIZE)
    assert not can_pack(replace(SIZE, **changes))  # type: ignore[arg-type]
    assert prepare_for_training(Transformer(SIZE, VOCAB), CPU, "bf16").packed is None


def test_attention_of_hypotheses_on_a_device_without_triton_is_the_pages() -> None:
    """As on the older of two unlike GPUs."""
    q, k, v = torch.randn(3, 2, 4, 3, 8)
    mask, dropout = torch.arange(3) < torch.tensor([3, 2])[:, None, None, None], Dropout(0.0)
    torch.testing.assert_close(of_hypotheses(q, k, v, mask, dropout), scaled_dot_product_attention(q, k, v, mask, dropout))


@pytest.mark.gpu
@pytest.mark.parametrize("longest", [30, 60, 129, 200])
def test_packed_gradients_on_a_gpu_are_those_of_a_padded_batch_in_float32(longest: int) -> None:
    """By the kernel for short sentences or FlashAttention and by generated kernels, in bf16: as near as the padded batch in bf16 is."""
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = Transformer(replace(SIZE, d_model=128, d_ff=256, d_k=64, d_v=64), VOCAB).to(device)
    pairs = pairs_of([(int(a), int(b)) for a, b in np.random.default_rng(1).integers(1, longest, (40, 2))])
    ops = prepare_for_training(model, device, "bf16")
    assert ops.packed is not None
    assert ops.captures
    exact = found(model, on_device(make_batch(pairs), device))
    with torch.autocast("cuda", torch.bfloat16):
        padded = found(model, on_device(make_batch(pairs), device))
        packed = found(model, on_device(make_packed_batch(pairs, 20 * longest), device), kernels=True)
        again = found(model, on_device(make_packed_batch(pairs, 20 * longest), device), kernels=True)
    for want, rounded, ours, repeated in zip(exact, padded, packed, again, strict=True):
        error, bound = ((one[: len(want)].float() - want).norm() / want.norm() for one in (ours, rounded))
        assert error < max(0.02, 1.5 * bound)
        # Of longer sentences FlashAttention adds up the gradients in any order.
        assert torch.equal(ours, repeated) if longest <= LONGEST_OF_SHORT + 1 else torch.allclose(ours, repeated, rtol=0.02, atol=0.02)
