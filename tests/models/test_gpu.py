"""Every architecture on a GPU is the one on a CPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.models.test_architectures import SIZES, built, tokens
from transformer_core.models.precision import choose_kernels
from transformer_core.models.translation import TranslationModel
from transformer_core.sizes import ModelSize
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
