"""A model that multiplies integers of 8 bits, for decoding on a CPU."""

import torch
from torch import Tensor, nn

from transformer_core.errors import configuration_error
from transformer_core.models.packed import replace_linear_maps
from transformer_core.models.translation import TranslationModel

_GREATEST = 127  # Steps of 8 bits on either side of 0.
_ZERO = 128  # The kernel reads what is multiplied as 0..255, so this stands for 0.
_LEAST = 1e-30  # The step of a row of zeros.


class QuantisedLinear(nn.Module):
    """x W^T + b, each row of x and of W as whole multiples of 1/127 of its greatest entry.

    Their products are summed exactly, in 32 bits, so what comes of a row hangs on that row alone, whatever stands in the batch with it.

    Args:
        weight: (N, D).
        bias: (N,), None for none.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        exact = weight.detach().float()
        # Tensors, because a Python number in an operation is made one each time.
        self._least, self._zero = torch.tensor(_LEAST), torch.tensor(_ZERO, dtype=torch.uint8)
        step = self._step(exact)
        self._packed = torch.ops.onednn.qlinear_prepack((exact / step).round_().to(torch.int8), None)
        self._scales = step.flatten()
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., N), float32."""
        rows = x.flatten(0, -2)
        step = self._step(rows)
        # By way of int8, since conversion to uint8 takes five times as long; adding 128 to its bits then moves -127..127 to 1..255.
        whole = (rows * step.reciprocal()).round_().to(torch.int8).view(torch.uint8).add_(self._zero)
        y = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, _ZERO, self._packed, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        y = y.mul_(step) if self._bias is None else torch.addcmul(self._bias, y, step)
        return y.unflatten(0, x.shape[:-1])

    def _step(self, rows: Tensor) -> Tensor:
        """(R, 1) a 127th of the greatest entry of each row."""
        return torch.add(self._least, rows.abs().amax(dim=1, keepdim=True), alpha=1 / _GREATEST)


def has_vnni() -> bool:
    """Whether this CPU sums products of 8-bit integers in 32 bits."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_vnni") or capabilities.get("avx_vnni"))


def quantise(model: TranslationModel) -> None:
    """Make every linear map of a float32 model, its projection among them, one of 8 bits; all between them stays float32.

    Raises:
        UserError: exit code 78; the model is not on a CPU, or that has no instruction for it: what others do instead overflows.
    """
    if model.device.type != "cpu":
        raise configuration_error("precision int8: is for CPUs", "On a GPU take auto.")
    if not has_vnni():
        raise configuration_error("precision int8: this CPU has no VNNI", "Take auto.")
    replace_linear_maps(model, QuantisedLinear)
