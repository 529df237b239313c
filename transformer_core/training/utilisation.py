"""How much of a machine a training uses: products of the model for each token, and what the machine could do."""

import time

import torch

from transformer_core.models.precision import Precision
from transformer_core.models.translation import TranslationModel
from transformer_core.training.devices import Devices, autocast

# A forward pass multiplies and adds once a weight, a backward pass twice.
_FLOPS_A_WEIGHT = 6
_TRIALS = 3


def flops_a_token(model: TranslationModel) -> tuple[int, int]:
    """Floating-point operations of the weights' products, forward and backward, for a source and for a target token.

    Attention's scores and weighted sums are left out, as is usual for MFU: they grow with the sentence.
    """
    source = target = 0
    for name, parameter in model.named_parameters():
        stack = name.partition(".")[0]
        if parameter.dim() < 2 or stack not in ("encoder", "decoder"):
            continue
        if stack == "encoder" or "cross_attention.key" in name or "cross_attention.value" in name:
            source += parameter.numel()
        else:
            target += parameter.numel()
    return _FLOPS_A_WEIGHT * source, _FLOPS_A_WEIGHT * (target + model.output_weight.numel())


def matrix_rate(devices: Devices, precision: Precision) -> float:
    """FLOP/s of all devices together in the product of two large square matrices, the best of a few trials, in the precision trained in."""
    size = 4096 if devices.device.type == "cuda" else 1024
    left = torch.rand(size, size, device=devices.device)
    seconds = float("inf")
    with autocast(devices.device, precision):
        for _ in range(1 + _TRIALS):
            began = time.perf_counter()
            (left @ left).sum().item()
            seconds = min(seconds, time.perf_counter() - began)
    rate = torch.tensor(2 * size**3 / seconds, dtype=torch.float64, device=devices.device)
    devices.sum_over_ranks(rate)
    return rate.item()
