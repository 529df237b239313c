"""The number types that a model computes in."""

from typing import Literal

import torch

Precision = Literal["auto", "bf16", "fp16", "float32", "float64"]
DecodingPrecision = Precision | Literal["int8"]


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def weights_dtype(precision: Precision) -> torch.dtype:
    """In which type weights, gradients and the optimiser's state are held."""
    return torch.float64 if precision == "float64" else torch.float32


def low_precision(device: torch.device, precision: Precision) -> torch.dtype | None:
    """In which type matrix products are computed where that is not the type of the weights.

    `auto` is bf16 on a device that is fast at it, fp16 on a GPU that is not, else the weights' float32.
    """
    if precision == "auto" and has_fast_bf16(device):
        return torch.bfloat16
    if precision == "auto" and device.type == "cuda":
        return torch.float16
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
