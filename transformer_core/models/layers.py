"""Encoder and decoder layers (paper 3.1): every sub-layer is LayerNorm(x + Dropout(Sublayer(x))), or its pre-norm variant."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, MultiHeadAttention
from transformer_core.models.embeddings import Dropout
from transformer_core.models.translation import as_autocast
from transformer_core.presets import TransformerSize

Sublayer = Callable[[Tensor], Tensor]
Remember = Callable[[KeysAndValues], KeysAndValues]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": functional.relu, "swish": functional.silu, "gelu": functional.gelu}


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, the same at each position (paper 3.3, eq. 2), or with another activation than max(0, x)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.inner = nn.Linear(size.d_model, size.d_ff)
        self.outer = nn.Linear(size.d_ff, size.d_model)
        self.activation = ACTIVATIONS[size.activation]
        self.dropout = Dropout(size.relu_dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D), with an inner width of F."""
        return self.outer(self.dropout(self.activation(self.inner(x))))


class Residual(nn.Module):
    """Residual and norm of a sub-layer: LayerNorm(x + Dropout(f(x))), the paper's post-norm (3.1, 5.4), or x + Dropout(f(LayerNorm(x)))."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.dropout = Dropout(size.dropout)
        self.norm = nn.LayerNorm(size.d_model)
        self.norm_first = size.norm == "pre"

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        """Apply a sub-layer to x, (B, T, D), and return that shape."""
        if self.norm_first:
            return x + self.dropout(sublayer(normed(x, self.norm)))
        return normed(x + self.dropout(sublayer(x)), self.norm)


def normed(x: Tensor, norm: nn.LayerNorm | None) -> Tensor:
    """Return the norm of x, or x. On a GPU autocast computes it in float32; the result is in the low precision again, as on a CPU."""
    return x if norm is None else as_autocast(norm(x))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network (paper 3.1)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(size)
        self.feed_forward = FeedForward(size)
        self.round_attention = Residual(size)
        self.round_feed_forward = Residual(size)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Apply the layer to x, (B, S, D), and return that shape; the mask is (B, 1, 1, S), True at real tokens, or its `bias_of`."""

        def attention(x: Tensor) -> Tensor:
            return self.self_attention(*self.self_attention.project(x), mask)

        return self.round_feed_forward(self.round_attention(x, attention), self.feed_forward)


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

    def forward(self, x: Tensor, mask: Tensor, encoded: KeysAndValues, encoded_mask: Tensor, remember: Remember | None = None) -> Tensor:
        """Apply the layer to a whole target, (B, T, D), or to the newest position of K hypotheses per sentence, (B, K, D); keep the shape.

        Args:
            x: input of the layer.
            mask: for a whole target (T, T); for hypotheses (B, 1, K, C), True at the cached positions that each one sees. Or its `bias_of`.
            encoded: keys and values of the encoder's output for this layer.
            encoded_mask: (B, 1, 1, S), True at real source tokens, or its `bias_of`.
            remember: adds this position's keys and values to those of the positions before and returns all of them, C for each sentence;
                None for a whole target.
        """

        def self_attention(x: Tensor) -> Tensor:
            query, memory = self.self_attention.project(x)
            return self.self_attention(query, memory if remember is None else remember(memory), mask)

        def cross_attention(x: Tensor) -> Tensor:
            return self.cross_attention(self.cross_attention.queries(x), encoded, encoded_mask)

        x = self.round_self_attention(x, self_attention)
        x = self.round_cross_attention(x, cross_attention)
        return self.round_feed_forward(x, self.feed_forward)
