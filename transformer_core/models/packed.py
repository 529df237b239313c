"""Weights in the order in which oneDNN's kernels read them, for decoding on a CPU, where few rows meet large weights."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_core.models.attention import SelfAttention
from transformer_core.models.precision import has_fast_bf16
from transformer_core.models.translation import TranslationModel


class PackedLinear(nn.Module):
    """x W^T + b without a gradient; x in the type of the weights.

    Args:
        weight: (N, D), float32 or bf16.
        bias: (N,), None for none.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., N)."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y


def pack(model: TranslationModel) -> None:
    """Lay out the weights of a model that is only to decode, where there are kernels for it; elsewhere leave them as they are."""
    dtype = model.output_weight.dtype
    if model.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return
    if dtype == torch.float32 or (dtype == torch.bfloat16 and has_fast_bf16(model.device)):
        replace_linear_maps(model, PackedLinear)


def replace_linear_maps(model: TranslationModel, replacement: Callable[[Tensor, Tensor | None], nn.Module]) -> None:
    """Put others in the place of every linear map, the projection to logits among them; self-attention has one for its three.

    Args:
        model: changed in place; it can neither be trained nor saved afterwards.
        replacement: makes a map of weight (N, D) and bias (N,) or None.
    """
    for module in list(model.modules()):
        if isinstance(module, SelfAttention):
            module.join()
    model.decoding_projection = replacement(model.output_weight, None)
    for name, linear in list(model.named_modules()):
        if isinstance(linear, nn.Linear):
            model.set_submodule(name, replacement(linear.weight, linear.bias))
