"""Encoder and decoder layers (paper 3.1): every sub-layer is LayerNorm(x + Dropout(Sublayer(x)))."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, MultiHeadAttention, Visible
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


class Residual(nn.Module):
    """What stands round a sub-layer: LayerNorm(x + Dropout(f(x))), the paper's post-norm (3.1, 5.4), or x + Dropout(f(LayerNorm(x)))."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.dropout = Dropout(size.dropout)
        self.norm = nn.LayerNorm(size.d_model)
        self._norm_first = size.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """What the sub-layer reads of x, (B, T, D)."""
        normed: Tensor = self.norm(x) if self._norm_first else x
        return normed

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """x and the sub-layer's output y, both (B, T, D), put together."""
        total = x + self.dropout(y)
        normed: Tensor = total if self._norm_first else self.norm(total)
        return normed


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network (paper 3.1)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(size)
        self.feed_forward = FeedForward(size)
        self.round_attention = Residual(size)
        self.round_feed_forward = Residual(size)

    def forward(self, x: Tensor, visible: Visible) -> Tensor:
        """x: (B, S, D); visible: (B, 1, 1, S), True at real tokens, or a neighbourhood. Returns (B, S, D)."""
        read = self.round_attention.before(x)
        x = self.round_attention.after(x, self.self_attention(read, self.self_attention.keys_and_values(read), visible))
        return self.round_feed_forward.after(x, self.feed_forward(self.round_feed_forward.before(x)))


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then the feed-forward network (paper 3.1)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(size)
        self.cross_attention = MultiHeadAttention(size)
        self.feed_forward = FeedForward(size)
        self.round_self_attention = Residual(size)
        self.round_cross_attention = Residual(size)
        self.round_feed_forward = Residual(size)

    def forward(
        self, x: Tensor, past: KeysAndValues | None, visible: Visible, encoded: KeysAndValues, encoded_mask: Tensor | None
    ) -> tuple[Tensor, KeysAndValues]:
        """One layer over a whole target or over its newest position.

        Args:
            x: (B, T, D).
            past: keys and values of the positions before x; None where there are none.
            visible: (T, T), True where a position may see another; a neighbourhood; None for the newest position, which sees all.
            encoded: keys and values of the encoder's output for this layer.
            encoded_mask: (B, 1, 1, S), True at real source tokens.

        Returns:
            (B, T, D), and the keys and values of all positions so far.
        """
        read = self.round_self_attention.before(x)
        own = self.self_attention.keys_and_values(read)
        if past is not None:
            own = KeysAndValues(torch.cat((past.key, own.key), dim=2), torch.cat((past.value, own.value), dim=2))
        x = self.round_self_attention.after(x, self.self_attention(read, own, visible))
        x = self.round_cross_attention.after(x, self._attend_to_source(self.round_cross_attention.before(x), encoded, encoded_mask))
        return self.round_feed_forward.after(x, self.feed_forward(self.round_feed_forward.before(x))), own

    def _attend_to_source(self, x: Tensor, encoded: KeysAndValues, mask: Tensor | None) -> Tensor:
        """Queries of a sentence's K beams stand side by side, (B*K, 1, D) as (B, K, D), so keys and values are held once a sentence."""
        sentences = encoded.key.shape[0]
        grouped = x.reshape(sentences, -1, x.shape[-1])
        return self.cross_attention(grouped, encoded, mask).reshape(x.shape)
