"""Token embeddings and positions (paper 3.4, 3.5), and the dropout of their sum and of every sub-layer (5.4)."""

import math
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

_DROPOUT_LEVELS = 1 << 16


class TokenEmbedding(nn.Module):
    """A (V, D) matrix whose rows are multiplied by sqrt(d_model); as the pre-softmax projection it is not scaled (paper 3.4).

    Entries are initialised from N(0, 1/d_model), so embedded tokens have unit variance, similar in size to the positions added to them.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model).normal_(std=d_model**-0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed (B, T) token ids as (B, T, D)."""
        return functional.embedding(tokens, self.weight) * math.sqrt(self.weight.shape[1])


@cache
def sinusoidal_positions(length: int, d_model: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor:
    """Return PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same (paper 3.5), computed in float64.

    Returns:
        (length, D) in `dtype`, sines and cosines interleaved; row 0 is position 0. All are kept: what a GPU replays reads their memory.
    """
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=-1).reshape(length, d_model).to(device, dtype)


class SinusoidalPositions(nn.Module):
    """The paper's encodings, for any length."""

    _like: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self._d_model = d_model
        self.register_buffer("_like", torch.zeros(0), persistent=False)  # Of the type and on the device of the model.

    def forward(self, first: int, count: int) -> Tensor:
        """Return the encodings of `count` positions from `first` on: (count, D)."""
        length = max(256, 1 << (first + count - 1).bit_length())
        return sinusoidal_positions(length, self._d_model, self._like.dtype, self._like.device)[first : first + count]


class LearnedPositions(nn.Module):
    """A trained vector for each of a fixed number of positions (Table 3, row E), initialised like a scaled token embedding."""

    def __init__(self, positions: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, d_model).normal_())

    def forward(self, first: int, count: int) -> Tensor:
        """Return the vectors of `count` positions from `first` on: (count, D)."""
        return self.weight[first : first + count]


class Dropout(nn.Module):
    """Zero each element with probability `probability` and scale the rest to keep the mean.

    On a CPU the random numbers take most of the time, so an element takes only 16 bits, and the probability is rounded to a multiple of
    2^-16.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`; outside training, `x` itself."""
        dropped = min(round(self.probability * _DROPOUT_LEVELS), _DROPOUT_LEVELS - 1)
        if not self.training or dropped == 0:
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self.probability)
        # With these bounds all 64 bits are random; by default the sign bit is 0, and the top 16 bits of each word are biased.
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        keep = bits >= dropped - _DROPOUT_LEVELS // 2
        return x * (keep.to(x.dtype) * (_DROPOUT_LEVELS / (_DROPOUT_LEVELS - dropped)))
