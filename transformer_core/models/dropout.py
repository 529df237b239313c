"""Dropout that draws 16 random bits an element: on a CPU the draw, not the multiply, is what dropout costs."""

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zero each element with probability `probability`, rounded to a multiple of 2^-16, and scale the rest to keep the mean."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in, the same out; the identity outside training."""
        dropped = min(round(self.probability * _LEVELS), _LEVELS - 1)
        if not self.training or dropped == 0:
            return x
        if x.device.type != "cpu":
            return nn.functional.dropout(x, self.probability)
        # random_() without bounds leaves the sign bit of an int64 zero, so the top 16 bits of each word would be biased: 63 bits are
        # drawn and the bounds below ask for all 64.
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        keep = bits >= dropped - _LEVELS // 2
        return x * (keep.to(x.dtype) * (_LEVELS / (_LEVELS - dropped)))
