"""Token embeddings and positions (paper 3.4, 3.5)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class TokenEmbedding(nn.Module):
    """A (V, D) matrix, read at the input times sqrt(d_model).

    Entries start as N(0, 1/d_model), so tokens enter with unit variance beside positions of about the same size; where the matrix is the
    pre-softmax projection too, that use is not scaled (paper 3.4).
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model).normal_(std=d_model**-0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) token ids to (B, T, D)."""
        return functional.embedding(tokens, self.weight) * math.sqrt(self.weight.shape[1])


def sinusoidal_positions(length: int, d_model: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same (paper 3.5), computed in float64.

    Returns:
        (length, D) in `dtype`, sines and cosines interleaved; row 0 is position 0.
    """
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=-1).reshape(length, d_model).to(dtype)


class SinusoidalPositions(nn.Module):
    """The paper's encodings, defined for any length: the table grows when a longer input comes."""

    _table: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.register_buffer("_table", sinusoidal_positions(256, d_model), persistent=False)

    def forward(self, first: int, count: int) -> Tensor:
        """Encodings of `count` positions from `first` on: (count, D)."""
        end = first + count
        table = self._table  # Threads share this module: each goes on with the table that it has found long enough or made.
        if end > len(table):
            table = self._table = sinusoidal_positions(2 * end, table.shape[1], table.dtype).to(table.device)
        return table[first:end]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SinusoidalPositions":
        """Where the model is cast to another type, compute the table anew: float32 cast to float64 would stay as coarse as float32."""
        before = self._table.dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._table.dtype != before:
            self._table = sinusoidal_positions(len(self._table), self._table.shape[1], self._table.dtype).to(self._table.device)
        return self


class LearnedPositions(nn.Module):
    """One trained vector a position (Table 3, row E), for a fixed number of positions; they start as the tokens do, scale included."""

    def __init__(self, positions: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, d_model).normal_())

    def forward(self, first: int, count: int) -> Tensor:
        """Vectors of `count` positions from `first` on: (count, D)."""
        return self.weight[first : first + count]
