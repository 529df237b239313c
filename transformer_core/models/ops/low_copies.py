"""Weights in low precision for packed micro-batches."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from transformer_core.models.ops.packed import PackedBatch
from transformer_core.models.ops.packed_transformer import PackedTransformer


class LowCopies:
    """Copies, in the low precision, of weights and biases of a model's linear maps; packed micro-batches are computed from them.

    Autocast would convert each weight and each gradient by a small kernel of its own. Here a few convert all weights, and two add up all
    gradients.

    Attributes:
        originals: the weights and biases.
    """

    def __init__(self, packed: PackedTransformer, dtype: torch.dtype) -> None:
        named = {
            f"{name}.{own}": weight
            for name, module in packed.named_modules()
            if isinstance(module, nn.Linear)
            for own, weight in module.named_parameters()
            if weight.requires_grad
        }
        self.originals: list[Tensor] = list(named.values())
        self._packed = packed
        self._copies = {name: torch.empty_like(weight, dtype=dtype).requires_grad_() for name, weight in named.items()}

    def decoded(self, batch: PackedBatch) -> Tensor:
        """Return the output for each target token, (n, D), computed from new copies."""
        copies = list(self._copies.values())
        with torch.no_grad():
            torch._foreach_copy_(copies, self.originals)
        for copy in copies:
            copy.grad = None  # A new gradient is then kept as it is, and not added to zeros.
        decoded: Tensor = functional_call(self._packed, self._copies, (batch,))
        return decoded

    def add_gradients(self, sums: Tensor) -> None:
        """Add the gradients of the last `decoded` to `sums`, which begins with those of the originals."""
        gradients = [torch.zeros_like(copy) if copy.grad is None else copy.grad for copy in self._copies.values()]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        sums[: len(together)] += together
