"""Encoder and decoder layers (paper 3.1): every sub-layer is LayerNorm(x + Dropout(Sublayer(x)))."""

from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, MultiHeadAttention
from transformer_core.models.dropout import Dropout
from transformer_core.presets import TransformerSize


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, the same at each position (paper 3.3, eq. 2)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.inner = nn.Linear(size.d_model, size.d_ff)
        self.outer = nn.Linear(size.d_ff, size.d_model)
        self.dropout = Dropout(size.relu_dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D) through F."""
        return self.outer(self.dropout(functional.relu(self.inner(x))))


class AddAndNorm(nn.Module):
    """LayerNorm(x + Dropout(y)): the residual round a sub-layer, normalised after it (paper 3.1, 5.4)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.dropout = Dropout(size.dropout)
        self.norm = nn.LayerNorm(size.d_model)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """x, y: (B, T, D). Returns (B, T, D)."""
        return self.norm(x + self.dropout(y))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network (paper 3.1)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(size)
        self.feed_forward = FeedForward(size)
        self.after_attention = AddAndNorm(size)
        self.after_feed_forward = AddAndNorm(size)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: (B, S, D); mask: (B, 1, 1, S), True at real tokens. Returns (B, S, D)."""
        x = self.after_attention(x, self.self_attention(x, self.self_attention.keys_and_values(x), mask))
        return self.after_feed_forward(x, self.feed_forward(x))


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then the feed-forward network (paper 3.1)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(size)
        self.cross_attention = MultiHeadAttention(size)
        self.feed_forward = FeedForward(size)
        self.after_self_attention = AddAndNorm(size)
        self.after_cross_attention = AddAndNorm(size)
        self.after_feed_forward = AddAndNorm(size)

    def forward(
        self, x: Tensor, past: KeysAndValues, past_mask: Tensor | None, encoded: KeysAndValues, encoded_mask: Tensor | None
    ) -> Tensor:
        """One layer over a whole target or over its newest position.

        Args:
            x: (B, T, D).
            past: keys and values of this layer's own positions, those of x included.
            past_mask: (T, T), True where a position may see another; None for the newest position, which sees all.
            encoded: keys and values of the encoder's output for this layer.
            encoded_mask: (B, 1, 1, S), True at real source tokens.

        Returns:
            (B, T, D).
        """
        x = self.after_self_attention(x, self.self_attention(x, past, past_mask))
        x = self.after_cross_attention(x, self._attend_to_source(x, encoded, encoded_mask))
        return self.after_feed_forward(x, self.feed_forward(x))

    def _attend_to_source(self, x: Tensor, encoded: KeysAndValues, mask: Tensor | None) -> Tensor:
        """Queries of a sentence's K beams stand side by side, (B*K, 1, D) as (B, K, D), so keys and values are held once a sentence."""
        sentences = encoded.key.shape[0]
        grouped = x.reshape(sentences, -1, x.shape[-1])
        return self.cross_attention(grouped, encoded, mask).reshape(x.shape)
