"""What a device computes fast: number types of a model, whether it has compiled kernels, and linear maps for decoding on a CPU.

These have weights pre-packed for oneDNN, or in 8-bit integers.
"""

import os
import shutil
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton

from transformer_core.config import Precision
from transformer_core.errors import configuration_error
from transformer_core.models.attention import MultiHeadAttention, SelfAttention
from transformer_core.models.translation import TranslationModel

_GREATEST = 127  # Largest 8-bit integer.
_ZERO = 128  # Zero point of the kernel's left operand, which is 0..255.
_LEAST = 1e-30  # Step of a row of zeros.
AMPERE = (8, 0)  # The least compute capability that Triton and FlashAttention support.


def choose_kernels(device: torch.device) -> None:
    """Switch off, in this process, kernels of cuDNN that torch takes on a GPU by default; on a CPU this does nothing.

    - Attention, torch's first choice on an H100. It builds a plan for every new shape, which takes up to 0.5 s, and nearly every batch has
      a new one. Its gradients differ from run to run, and with a mask they can be NaN (pytorch issue 196678).
    - TF32 in recurrent layers and convolutions: float32 is then float32, as in matrix products, where torch's default is the same.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cudnn.allow_tf32 = False


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether the device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def has_vnni() -> bool:
    """Return whether this CPU has VNNI: sums of products of 8-bit integers in 32 bits."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_vnni") or capabilities.get("avx_vnni"))


@cache
def can_compile(device: torch.device) -> bool:
    """Return whether kernels for this device can be compiled here.

    They need an Ampere GPU or a later one, and Triton, which needs a C compiler and the headers of Python.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < AMPERE:
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


class PackedLinear(nn.Module):
    """x W^T + b without a gradient, W in the layout of oneDNN's kernels; x must have the type of the weights.

    Args:
        weight: (N, D), float32 or bf16.
        bias: (N,) or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., N)."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


class QuantisedLinear(nn.Module):
    """x W^T + b, with each row of x and of W rounded to multiples of 1/127 of its largest absolute entry.

    Their products are summed exactly, in 32 bits, so the result of a row does not depend on its batch.

    Args:
        weight: (N, D).
        bias: (N,) or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        exact = weight.detach().float()
        # Tensors, because each operation would convert a Python number to one.
        self._least, self._zero = torch.tensor(_LEAST), torch.tensor(_ZERO, dtype=torch.uint8)
        step = self._step(exact)
        self._packed = torch.ops.onednn.qlinear_prepack((exact / step).round_().to(torch.int8), None)
        self._scales = step.flatten()
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., N), float32."""
        rows = x.flatten(0, -2)
        step = self._step(rows)
        # Converted to int8, since conversion to uint8 takes five times as long; adding 128 to its bits then maps -127..127 to 1..255.
        whole = (rows * step.reciprocal()).round_().to(torch.int8).view(torch.uint8).add_(self._zero)
        y = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, _ZERO, self._packed, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        y = y.mul_(step) if self._bias is None else torch.addcmul(self._bias, y, step)
        return y.unflatten(0, x.shape[:-1])

    def _step(self, rows: Tensor) -> Tensor:
        """Return 1/127 of the largest absolute entry of each row, (R, 1)."""
        return torch.add(self._least, rows.abs().amax(dim=1, keepdim=True), alpha=1 / _GREATEST)


def pack(model: TranslationModel) -> None:
    """Prepare a model for decoding only.

    On a GPU the three projections of each self-attention become one, and attention gets a kernel if one can be compiled. On a CPU
    weights are pre-packed if oneDNN has kernels for their number type.
    """
    dtype = model.output_weight.dtype
    if model.device.type == "cuda":
        _fuse(model)
        compiles = dtype != torch.float64 and can_compile(model.device)
        for module in model.modules():
            if isinstance(module, MultiHeadAttention):
                module.has_kernel = module.narrow and compiles
    if model.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return
    if dtype == torch.float32 or (dtype == torch.bfloat16 and has_fast_bf16(model.device)):
        _replace_linear_maps(model, PackedLinear)


def quantise(model: TranslationModel) -> None:
    """Quantise every linear map of a float32 model, including the projection to logits, to 8 bits; the rest stays float32.

    Raises `UserError` (78): the model is not on a CPU, or the CPU has no VNNI, without which the sums overflow.
    """
    if model.device.type != "cpu":
        raise configuration_error("precision int8: is for CPUs", "On a GPU take auto.")
    if not has_vnni():
        raise configuration_error("precision int8: this CPU has no VNNI", "Take auto.")
    _replace_linear_maps(model, QuantisedLinear)


def _fuse(model: TranslationModel) -> None:
    for module in list(model.modules()):
        if isinstance(module, SelfAttention):
            module.fuse()


def _replace_linear_maps(model: TranslationModel, replacement: Callable[[Tensor, Tensor | None], nn.Module]) -> None:
    """Replace every linear map in place, including the projection to logits.

    The three projections of a self-attention become one. Afterwards the model can only decode: it cannot be trained or saved.
    `replacement` makes a linear map from weight (N, D) and bias, (N,) or None.
    """
    _fuse(model)
    model.decoding_projection = replacement(model.output_weight, None)
    for name, linear in list(model.named_modules()):
        if isinstance(linear, nn.Linear):
            model.set_submodule(name, replacement(linear.weight, linear.bias))
