"""Every architecture on a GPU is the one on a CPU, and kernels of this package do what PyTorch does."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models.test_architectures import SIZES, built, tokens
from tests.refusals import refused
from transformer_core.models.attention import bias_of
from transformer_core.models.precision import choose_kernels, quantise
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ModelSize
from transformer_core.training.loss import cross_entropy

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def found(model: TranslationModel, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Logits, loss and gradients, on the CPU in float64."""
    device = model.device
    source, target = tokens(5, 9).to(device), tokens(5, 8, seed=2).to(device)
    source[1, 4:] = source[3, 7:] = 0
    model.zero_grad()
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        decoded = model(source, source != 0, target)
        logits = model.project(decoded)
        loss = cross_entropy(decoded.flatten(0, 1), model.output_weight, target.flatten(), 0.1)
    loss.objective.backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    return [part.detach().double().cpu() for part in (logits, loss.objective, gradients)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(None, 2e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_logits_loss_and_gradients_are_those_of_a_cpu(size: ModelSize, dtype: torch.dtype | None, tolerance: float) -> None:
    choose_kernels(CUDA)
    still = replace(size, dropout=0.0)
    expected = found(built(still).float().train())
    for want, ours in zip(expected, found(built(still).float().train().to(CUDA), dtype), strict=True):
        assert ours.isfinite().all()
        assert (ours - want).norm() <= tolerance * want.norm()


def test_int8_is_refused() -> None:
    with refused(78, r"precision int8: is for CPUs\. On a GPU take auto"):
        quantise(built(SIZES["transformer"]).float().to(CUDA))


@pytest.mark.parametrize("width", [40, 512])
@pytest.mark.parametrize(
    ("adds", "norm", "dropout"), [(True, True, 0.1), (True, True, 0.0), (True, False, 0.3), (True, False, 0.0), (False, True, 0.0)]
)
def test_residual_and_norm_in_one_kernel_have_their_gradients(adds: bool, norm: bool, dropout: float, width: int) -> None:
    from transformer_core.models.layer_kernels import residual

    torch.manual_seed(0)
    x, y = (torch.randn(301, width, device=CUDA, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    one, other = (torch.rand(301, width, device=CUDA, dtype=torch.bfloat16) + 0.5 for _ in range(2))  # Their sum is never 0.
    layer = nn.LayerNorm(width, device=CUDA)
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    given = [x] + [y] * adds + list(layer.parameters()) * norm
    twice = residual(x, y if adds else None, layer if norm else None, dropout)
    found = [twice[0].detach(), *torch.autograd.grad(twice, given, (one, other))]
    kept = (found[2] != 0).double() if dropout else torch.ones_like(x, dtype=torch.double)
    assert kept.mean().item() == pytest.approx(1 - dropout, abs=0.02)

    exact = deepcopy(layer).double()
    inputs = [part.detach().double().requires_grad_() for part in (x, y)]
    total = inputs[0] + inputs[1] * kept / (1 - dropout) * adds
    out = exact(total) if norm else total
    wanted = [inputs[0]] + [inputs[1]] * adds + list(exact.parameters()) * norm
    expected = [out.detach(), *torch.autograd.grad(out, wanted, one.double() + other.double())]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).norm() < 0.005 * theirs.norm()


@pytest.mark.parametrize("hypotheses", [1, 4, 20])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.01)])
def test_attention_of_hypotheses_by_its_kernel_is_pytorchs(hypotheses: int, dtype: torch.dtype, tolerance: float) -> None:
    from transformer_core.models.decoding_attention import decoding_attention

    torch.manual_seed(0)
    query, key, value = (torch.randn(5, 3, count, 24, device=CUDA, dtype=dtype) for count in (hypotheses, 200, 200))
    for rows in (1, hypotheses):
        seen = torch.rand(5, 1, rows, 200, device=CUDA) < 0.3
        seen[..., 64:128], seen[..., 150] = False, True
        bias = bias_of(seen, dtype)
        expected = functional.scaled_dot_product_attention(*(part.double() for part in (query, key, value)), attn_mask=bias.double())
        found = decoding_attention(query, key, value, bias).double()
        assert (found - expected).norm() < tolerance * expected.norm()
