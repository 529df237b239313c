"""A model that multiplies integers of 8 bits, for decoding on a CPU."""

import torch
from torch import Tensor, nn

from transformer_core.errors import configuration_error
from transformer_core.models.packed import replace_linear_maps
from transformer_core.models.translation import TranslationModel

_GREATEST = 127  # Steps of 8 bits on either side of 0.
_ZERO = 128  # The kernel reads what is multiplied as 0..255, so this stands for 0.
_LEAST = 1e-30  # Instead of 0 as the greatest of a row.


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
        scales = exact.abs().amax(dim=1).clamp_(min=_LEAST) / _GREATEST
        self._packed = torch.ops.onednn.qlinear_prepack((exact / scales[:, None]).round_().to(torch.int8), None)
        self._scales = scales / _GREATEST  # Both steps but for the greatest entry of a row of x, which `forward` multiplies with.
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., N), float32."""
        rows = x.flatten(0, -2)
        greatest = rows.abs().amax(dim=1, keepdim=True).clamp_(min=_LEAST)
        # By way of int8, since conversion to uint8 takes five times as long; adding 128 to its bits then moves -127..127 to 1..255.
        whole = (rows * (_GREATEST / greatest)).round_().to(torch.int8).view(torch.uint8).add_(_ZERO)
        y = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, _ZERO, self._packed, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        y = y.mul_(greatest) if self._bias is None else torch.addcmul(self._bias, y, greatest)
        return y.unflatten(0, x.shape[:-1])


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
