"""Encoder and decoder layers (paper 3.1): every sub-layer is LayerNorm(x + Dropout(Sublayer(x))), or its pre-norm variant."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, MultiHeadAttention, Segments, SelfAttention, Visible
from transformer_core.models.embeddings import Dropout
from transformer_core.models.translation import as_autocast
from transformer_core.presets import TransformerSize


class Stream(NamedTuple):
    """What runs through all layers, (B, T, D), once for each of its two uses: a kernel then adds up their gradients itself."""

    residual: Tensor
    entering: Tensor

    @classmethod
    def of(cls, x: Tensor) -> "Stream":
        """Return x for both uses."""
        return cls(x, x)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2, the same at each position (paper 3.3, eq. 2).

    Attributes:
        has_kernel: whether to use, in training, the kernels of layer_kernels.py.
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.has_kernel = False
        self.inner = nn.Linear(size.d_model, size.d_ff)
        self.outer = nn.Linear(size.d_ff, size.d_model)
        self.dropout = Dropout(size.relu_dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D), with an inner width of F."""
        if self.has_kernel and self.training:
            from transformer_core.models.layer_kernels import linear_relu  # It needs Triton, which a CPU's torch has not.

            return self.outer(self.dropout(linear_relu(x, self.inner)))
        return self.outer(self.dropout(functional.relu(self.inner(x))))


class Residual(nn.Module):
    """Residual and norm of a sub-layer f: LayerNorm(x + Dropout(f(x))), the paper's post-norm (3.1), or x + Dropout(f(LayerNorm(x))).

    Attributes:
        has_kernel: whether to use, in training, the kernels of layer_kernels.py.
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.dropout = Dropout(size.dropout)
        self.norm = nn.LayerNorm(size.d_model)
        self.has_kernel = False
        self._norm_first = size.norm == "pre"

    def before(self, x: Stream) -> Tensor:
        """Return the sub-layer's input, (B, T, D)."""
        if not self._norm_first:
            return x.entering
        if self.has_kernel and self.training:
            return self._by_kernel(x.entering, None, self.norm).residual
        return self._normed(x.entering)

    def after(self, x: Stream, y: Tensor) -> Stream:
        """Combine x and the sub-layer's output y, (B, T, D)."""
        if self.has_kernel and self.training:
            return self._by_kernel(x.residual, y, None if self._norm_first else self.norm)
        total = x.residual + self.dropout(y)
        return Stream.of(total if self._norm_first else self._normed(total))

    def _normed(self, x: Tensor) -> Tensor:
        """Return the norm of x. On a GPU autocast computes it in float32; the result is in the low precision again, as on a CPU."""
        return as_autocast(self.norm(x))

    def _by_kernel(self, x: Tensor, y: Tensor | None, norm: nn.LayerNorm | None) -> Stream:
        from transformer_core.models.layer_kernels import residual  # It needs Triton, which a CPU's torch has not.

        return Stream(*residual(x, y, norm, 0.0 if y is None else self.dropout.probability))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network (paper 3.1)."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.self_attention = SelfAttention(size)
        self.feed_forward = FeedForward(size)
        self.round_attention = Residual(size)
        self.round_feed_forward = Residual(size)

    def forward(self, x: Stream, visible: Visible) -> Stream:
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
        x: Stream,
        visible: Visible,
        encoded: KeysAndValues,
        encoded_mask: Tensor | Segments,
        past: KeysAndValues | None = None,
        slots: slice | Tensor = slice(0),
    ) -> Stream:
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
