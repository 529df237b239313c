"""Encoder and decoder layers (paper 3.1): every sub-layer is LayerNorm(x + Dropout(Sublayer(x))), or its pre-norm variant."""

from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, MultiHeadAttention, Segments, SelfAttention, Visible
from transformer_core.models.embeddings import Dropout
from transformer_core.models.translation import as_autocast
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
        """Map (B, T, D) to (B, T, D), with an inner width of F."""
        return self.outer(self.dropout(functional.relu(self.inner(x))))


class Residual(nn.Module):
    """Residual and norm of a sub-layer f: LayerNorm(x + Dropout(f(x))), the paper's post-norm (3.1), or x + Dropout(f(LayerNorm(x)))."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.dropout = Dropout(size.dropout)
        self.norm = nn.LayerNorm(size.d_model)
        self._norm_first = size.norm == "pre"

    def before(self, x: Tensor) -> Tensor:
        """Return the sub-layer's input, (B, T, D)."""
        return self._normed(x) if self._norm_first else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """Combine x and the sub-layer's output y, both (B, T, D)."""
        total = x + self.dropout(y)
        return total if self._norm_first else self._normed(total)

    def _normed(self, x: Tensor) -> Tensor:
        """Return the norm of x. On a GPU autocast computes it in float32; the result is in the low precision again, as on a CPU."""
        return as_autocast(self.norm(x))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network (paper 3.1)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.self_attention = SelfAttention(size)
        self.feed_forward = FeedForward(size)
        self.round_attention = Residual(size)
        self.round_feed_forward = Residual(size)

    def forward(self, x: Tensor, visible: Visible) -> Tensor:
        """Apply the layer to x, (B, S, D), and return that shape.

        `visible` is (B, 1, 1, S), True at real tokens, or its `bias_of`, or a neighbourhood, or packed sentences with B = 1.
        """
        query, own = self.self_attention.project(self.round_attention.before(x))
        x = self.round_attention.after(x, self.self_attention(query, own, visible))
        return self.round_feed_forward.after(x, self.feed_forward(self.round_feed_forward.before(x)))


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then the feed-forward network (paper 3.1)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.self_attention = SelfAttention(size)
        self.cross_attention = MultiHeadAttention(size)
        self.feed_forward = FeedForward(size)
        self.round_self_attention = Residual(size)
        self.round_cross_attention = Residual(size)
        self.round_feed_forward = Residual(size)

    def forward(
        self,
        x: Tensor,
        visible: Visible,
        encoded: KeysAndValues,
        encoded_mask: Tensor | Segments,
        past: KeysAndValues | None = None,
        slots: slice | Tensor = slice(0),
    ) -> Tensor:
        """Apply the layer to a whole target, (B, T, D), or to the newest position of K hypotheses per sentence, (B, K, D).

        Args:
            x: input of the layer.
            visible: for a whole target (T, T), a neighbourhood or packed sentences; for hypotheses (B, 1, K, C), True at the slots that
                each one sees. Or the `bias_of` such a mask.
            encoded: keys and values of the encoder's output for this layer.
            encoded_mask: (B, 1, 1, S), True at real source tokens, or its `bias_of`, or packed sentences.
            past: keys and values in C slots per sentence; those of this position are written there. None for a whole target.
            slots: the K slots of this position.

        Returns:
            The shape of x.
        """
        query, own = self.self_attention.project(self.round_self_attention.before(x))
        if past is not None:
            past.key[:, :, slots], past.value[:, :, slots] = own
            own = past
        x = self.round_self_attention.after(x, self.self_attention(query, own, visible, decoding=past is not None))
        query = self.cross_attention.queries(self.round_cross_attention.before(x))
        x = self.round_cross_attention.after(x, self.cross_attention(query, encoded, encoded_mask, decoding=past is not None))
        return self.round_feed_forward.after(x, self.feed_forward(self.round_feed_forward.before(x)))
