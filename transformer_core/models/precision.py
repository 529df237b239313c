"""What a device computes: the number types of a model's weights and products, and which kernels it has."""

import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch.utils._triton import has_triton

from transformer_core.config import Precision


def choose_kernels(device: torch.device) -> None:
    """Switch off, in this process, kernels of cuDNN that torch takes on a GPU by default; on a CPU this does nothing.

    - Attention, torch's first choice on an H100. It builds a plan for every new shape, which takes up to 0.5 s, and nearly every batch has
      a new one. Its gradients differ from run to run, and with a mask they can be NaN (pytorch issue 196678).
    - TF32 in recurrent layers and convolutions: float32 is then float32, as in matrix products, where torch's default is the same.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cudnn.allow_tf32 = False


def from_ampere(device: torch.device) -> bool:
    """Return whether the device is an Ampere GPU or a later one, which Triton, FlashAttention and fast bf16 need."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies bf16 matrices in hardware."""
    capabilities = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return bool(from_ampere(device) or capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@cache
def can_compile(device: torch.device) -> bool:
    """Return whether kernels for this device can be compiled here.

    They need an Ampere GPU or a later one, and Triton, which needs a C compiler and the headers of Python.
    """
    if not from_ampere(device):
        return False
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    header = Path(sysconfig.get_path("include"), "Python.h")
    return has_triton() and header.is_file() and any(map(shutil.which, compilers))


def weights_dtype(precision: Precision) -> torch.dtype:
    """Return the number type of weights, gradients and the optimiser's state."""
    return torch.float64 if precision == "float64" else torch.float32


def low_precision(device: torch.device, precision: Precision) -> torch.dtype | None:
    """Return the number type of matrix products if it differs from that of the weights, else None.

    `auto` is bf16 on a device with fast bf16, fp16 on any other GPU, and the weights' float32 on any other CPU.
    """
    if precision == "auto" and has_fast_bf16(device):
        return torch.bfloat16
    if precision == "auto" and device.type == "cuda":
        return torch.float16
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def precision_name(dtype: torch.dtype) -> str:
    """Return the name of a number type as the settings have it: bf16."""
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, str(dtype).removeprefix("torch."))
