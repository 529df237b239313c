"""The Triton kernels do what PyTorch does: on a GPU, or on a CPU in Triton's interpreter (`make test-kernels`)."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.models.test_ops import SIZE, VOCAB, found, pairs_of
from transformer_core.decoding.hypotheses import _folding, top_logits
from transformer_core.models.attention import bias_of
from transformer_core.models.ops.packed import Packed, on_device
from transformer_core.models.transformer import Transformer
from transformer_core.training.loader import make_batch, make_packed_batch
from transformer_core.training.loss import _LossOfKernel

pytestmark = pytest.mark.kernel
ROWS = 101
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LOW = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # The interpreter has no products of bf16.


@pytest.mark.parametrize("width", [40, 512])
@pytest.mark.parametrize(("adds", "norm", "dropout"), [(1, True, 0.1), (1, True, 0.0), (1, False, 0.3), (1, False, 0.0), (0, True, 0.0)])
def test_residual_and_norm_have_gradients(adds: int, norm: bool, dropout: float, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_core.models.ops import layer_kernels

    monkeypatch.setattr(layer_kernels, "_PROGRAMS", 7)  # Each has several rows, and some have more than others.
    torch.manual_seed(0)
    x, y = (torch.randn(ROWS, width, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    one, other = (torch.rand(ROWS, width, device=DEVICE, dtype=torch.bfloat16) + 0.5 for _ in range(2))  # Their sum is never 0.
    layer = nn.LayerNorm(width, device=DEVICE)
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    given = [x] + [y] * adds + list(layer.parameters()) * norm
    twice = layer_kernels.residual(x, y if adds else None, layer if norm else None, dropout)
    ours = [twice[0].detach(), *torch.autograd.grad(twice, given, (one, other))]
    kept = (ours[2] != 0).double() if dropout else torch.ones_like(x, dtype=torch.double)
    assert kept.mean().item() == pytest.approx(1 - dropout, abs=0.03)

    exact = deepcopy(layer).double()
    inputs = [part.detach().double().requires_grad_() for part in (x, y)]
    total = inputs[0] + inputs[1] * kept / (1 - dropout) * adds
    out = exact(total) if norm else total
    wanted = [inputs[0]] + [inputs[1]] * adds + list(exact.parameters()) * norm
    expected = [out.detach(), *torch.autograd.grad(out, wanted, one.double() + other.double())]
    for part, theirs in zip(ours, expected, strict=True):
        assert (part.double() - theirs).norm() < 0.005 * theirs.norm()


@pytest.mark.parametrize("width", [48, 520])
def test_linear_map_and_relu_have_their_gradients(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_core.models.ops import layer_kernels

    monkeypatch.setattr(layer_kernels, "_RELU_PROGRAMS", 3)
    torch.manual_seed(0)
    linear = nn.Linear(24, width, device=DEVICE)
    x = torch.randn(1, ROWS, 24, device=DEVICE, requires_grad=True)
    upstream = torch.randn(1, ROWS, width, device=DEVICE)
    given = [x, linear.weight, linear.bias]
    outputs = [layer_kernels.linear_relu(x, linear), functional.relu(linear(x))]
    ours, theirs = ([out.detach(), *torch.autograd.grad(out, given, upstream)] for out in outputs)
    for part, expected in zip(ours, theirs, strict=True):
        assert (part - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("width", [8, 24, 64])
@pytest.mark.parametrize(
    "lengths", [([5, 17, 0, 1, 30], None), ([5, 17, 0, 1, 30], [7, 3, 4, 1, 29]), ([8, 3, 1], [100, 0, 2]), ([100, 0, 2], [16, 5, 1])]
)
def test_attention_within_short_sentences_has_its_gradients(lengths: tuple[list[int], list[int] | None], width: int) -> None:
    """With an empty side, as in filling, with blocks of two sizes, and with queries, keys and values that are parts of one tensor."""
    from transformer_core.models.ops.short_attention import short_attention

    torch.manual_seed(0)
    heads = 2
    causal = lengths[1] is None
    queries, keys = (packed_of(side) for side in (lengths[0], lengths[1] or lengths[0]))
    whole = torch.randn(int(keys.starts[-1]), 3, heads, width, device=DEVICE, dtype=LOW)
    key, value, own = (part.requires_grad_() for part in whole.unbind(dim=1))
    query = own if causal else torch.randn(int(queries.starts[-1]), heads, width, device=DEVICE, dtype=LOW).requires_grad_()
    out = short_attention(query, key, value, queries, keys, causal)
    upstream = torch.randn_like(out)
    ours = [out.detach(), *torch.autograd.grad(out, (query, key, value), upstream)]

    exact = [part.detach().double().requires_grad_() for part in (query, key, value)]
    spans = [list(pairwise(side.starts.tolist())) for side in (queries, keys)]
    sentences = []
    for (a, b), (c, d) in zip(*spans, strict=True):
        sides = (part.transpose(0, 1) for part in (exact[0][a:b], exact[1][c:d], exact[2][c:d]))
        sentences += [functional.scaled_dot_product_attention(*sides, is_causal=causal)] if b > a else []
    expected = torch.cat(sentences, dim=1).transpose(0, 1)
    theirs = [expected.detach(), *torch.autograd.grad(expected, exact, upstream.double())]
    for part, one in zip(ours, theirs, strict=True):
        assert (part.double() - one).norm() < 0.01 * one.norm()


def test_masks_of_dropout_follow_torchs_seed() -> None:
    from transformer_core.models.ops import layer_kernels

    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        zeros = torch.zeros(ROWS, 40, device=DEVICE, dtype=torch.bfloat16)
        return layer_kernels.residual(zeros, torch.ones_like(zeros), None, 0.3)[0]

    first, again, other = map(drawn, (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(again, other)


def packed_of(lengths: list[int]) -> Packed:
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=DEVICE)
    none = torch.empty(0, dtype=torch.long, device=DEVICE)
    return Packed(none, none, starts, max(lengths))


@pytest.mark.parametrize("hypotheses", [1, 4, 20])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (LOW, 0.01)])
def test_attention_of_hypotheses_is_pytorchs(hypotheses: int, dtype: torch.dtype, tolerance: float) -> None:
    from transformer_core.models.ops.decoding_attention import decoding_attention

    torch.manual_seed(0)
    query, key, value = (torch.randn(5, 3, count, 24, device=DEVICE, dtype=dtype) for count in (hypotheses, 200, 200))
    for rows in (1, hypotheses):
        seen = torch.rand(5, 1, rows, 200, device=DEVICE) < 0.3
        seen[..., 64:128], seen[..., 150] = False, True
        bias = bias_of(seen, dtype)
        expected = functional.scaled_dot_product_attention(*(part.double() for part in (query, key, value)), attn_mask=bias.double())
        ours = decoding_attention(query, key, value, bias).double()
        assert (ours - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("vocabulary", [5, 2_000, 37_000])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss_and_its_gradient_are_pytorchs(vocabulary: int, label_smoothing: float) -> None:
    from transformer_core.models.ops.logits_kernels import gradient_in_place

    torch.manual_seed(0)
    logits = torch.randn(6, vocabulary, device=DEVICE) * 3
    targets = torch.tensor([0, vocabulary - 1, 3, -1, 4, -1], device=DEVICE)
    exact, real = logits.double().requires_grad_(), targets >= 0
    nll = functional.cross_entropy(exact[real], targets[real], reduction="sum")
    epsilon = label_smoothing * vocabulary / (vocabulary - 1)  # As loss.py says, PyTorch's for the paper's.
    smoothed = functional.cross_entropy(exact[real], targets[real], reduction="sum", label_smoothing=epsilon)
    (expected,) = torch.autograd.grad(smoothed, exact)
    sums = gradient_in_place(logits, targets, label_smoothing)
    assert sums.tolist() == pytest.approx([smoothed.item(), nll.item()], rel=1e-5)
    assert (logits - expected).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, LOW])
@pytest.mark.parametrize(("vocabulary", "beam"), [(64, 1), (200, 8), (8_210, 8), (37_000, 2)])
def test_what_a_search_needs_of_logits_is_pytorchs(vocabulary: int, beam: int, dtype: torch.dtype) -> None:
    """With a row that is no number, one that is far from 0, and the greatest logits where none may be chosen."""
    from transformer_core.models.ops.logits_kernels import normaliser_and_maxima

    torch.manual_seed(0)
    logits = (torch.randn(5, vocabulary, device=DEVICE) * 3).to(dtype)
    logits[0, 7], logits[1], logits[2, :3], logits[3, 5] = torch.nan, logits[1] - 300, 50, -torch.inf
    normalisers, maxima = normaliser_and_maxima(logits, _folding(vocabulary)[0], 3)
    assert torch.allclose(normalisers, logits.double().logsumexp(dim=1).float(), rtol=1e-5, equal_nan=True)
    logits[:, :3] = -torch.inf
    for ours, theirs in zip(top_logits(logits[1:], beam, maxima[1:]), top_logits(logits[1:], beam), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("vocabulary", [24, 29])
def test_logits_are_padded_to_whole_vectors_without_effect(vocabulary: int) -> None:
    torch.manual_seed(0)
    hidden, weight = (torch.randn(rows, 12, device=DEVICE).requires_grad_() for rows in (9, vocabulary))
    targets = torch.randint(0, vocabulary, (9,), device=DEVICE)
    smoothed, _ = _LossOfKernel.apply(hidden, weight, targets, 0.1)
    epsilon = 0.1 * vocabulary / (vocabulary - 1)
    expected = functional.cross_entropy(hidden @ weight.T, targets, reduction="sum", label_smoothing=epsilon)
    assert smoothed.item() == pytest.approx(expected.item(), rel=1e-5)
    for ours, theirs in zip(*(torch.autograd.grad(loss, (hidden, weight)) for loss in (smoothed, expected)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"tied": "decoder"}])
def test_packed_layers_with_kernels_have_the_outputs_and_gradients_of_padded_ones(changes: dict[str, object]) -> None:
    torch.manual_seed(0)
    model = Transformer(replace(SIZE, **changes), VOCAB).to(DEVICE)  # type: ignore[arg-type]
    pairs = pairs_of([(7, 9), (3, 4), (12, 5)])
    padded = found(model, on_device(make_batch(pairs), DEVICE))
    with torch.autocast("cuda", torch.bfloat16, enabled=DEVICE.type == "cuda"):
        packed = found(model, on_device(make_packed_batch(pairs), DEVICE), kernels=True)
    for ours, theirs in zip(packed, padded, strict=True):
        assert (ours - theirs).norm() < (0.02 if DEVICE.type == "cuda" else 1e-5) * theirs.norm()
