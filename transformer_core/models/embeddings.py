"""Token embeddings shared three ways, and sinusoidal positions (paper 3.4, 3.5)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same (paper 3.5).

    Returns:
        (length, D), float32, sines and cosines interleaved; row 0 is position 0.
    """
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=-1).reshape(length, d_model).float()


class SharedEmbedding(nn.Module):
    """One matrix for source embedding, target embedding and pre-softmax projection (paper 3.4).

    Entries start as N(0, 1/d_model); the input side multiplies by sqrt(d_model), so embeddings enter with unit variance beside positions
    of about the same size, and the output side does not.
    """

    _positions: Tensor

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model).normal_(std=d_model**-0.5))
        self.register_buffer("_positions", sinusoidal_positions(256, d_model), persistent=False)

    def forward(self, tokens: Tensor, first_position: int = 0) -> Tensor:
        """Scaled embedding plus position.

        Args:
            tokens: (B, T) token ids.
            first_position: position of column 0, for decoding a step at a time.

        Returns:
            (B, T, D).
        """
        d_model = self.weight.shape[1]
        end = first_position + tokens.shape[1]
        if end > len(self._positions):
            self._positions = sinusoidal_positions(2 * end, d_model).to(self._positions)
        return functional.embedding(tokens, self.weight) * math.sqrt(d_model) + self._positions[first_position:end]

    def project(self, x: Tensor) -> Tensor:
        """Pre-softmax linear map: (..., D) to logits (..., V)."""
        return functional.linear(x, self.weight)
