"""Scaled dot-product and multi-head attention (paper 3.2), over all positions or over a neighbourhood (paper 4)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from transformer_core.models.embeddings import Dropout
from transformer_core.models.packing import Packed
from transformer_core.presets import TransformerSize


class KeysAndValues(NamedTuple):
    """Projected memory of an attention: key (B, H, S, d_k) and value (B, H, S, d_v)."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class Neighbourhood:
    """The r positions visible to each position, the same for all heads (paper 4, restricted self-attention).

    Attributes:
        positions: (B or 1, T, r) indices of the visible positions.
        allowed: (B or 1, T, r), False for surplus entries where fewer than r positions are visible.
    """

    positions: Tensor
    allowed: Tensor

    @classmethod
    def centred(cls, mask: Tensor, r: int) -> "Neighbourhood":
        """Return the encoder's neighbourhood: r positions around each one.

        The window is moved inward at both ends of the sentence, so r >= length is full attention.

        Args:
            mask: (B, S), True at real tokens, which come first.
            r: number of visible positions.
        """
        lengths = mask.sum(dim=1)[:, None]
        first = torch.minimum(torch.arange(mask.shape[1], device=mask.device) - r // 2, lengths - r).clamp(min=0)
        return cls._window(first, lengths[:, :, None], r, mask.shape[1])

    @classmethod
    def before(cls, length: int, r: int, device: torch.device) -> "Neighbourhood":
        """Return the decoder's neighbourhood: each position sees itself and the r - 1 before it."""
        own = torch.arange(length, device=device)[None]
        return cls._window((own - r + 1).clamp(min=0), own[:, :, None] + 1, r, length)

    @classmethod
    def _window(cls, first: Tensor, end: Tensor, r: int, length: int) -> "Neighbourhood":
        positions = first[:, :, None] + torch.arange(min(r, length), device=first.device)
        return cls(positions.clamp(max=length - 1), positions < end)


@dataclass(frozen=True)
class Segments:
    """What the packed sentences of queries see: the packed sentence of keys with the same number.

    Attributes:
        causal: whether a query sees no later position.
        short: whether to use the kernel for short sentences.
    """

    queries: Packed
    keys: Packed
    causal: bool = False
    short: bool = False

    def mask(self) -> Tensor:
        """Return the same as a mask, (n of the queries, n of the keys)."""
        number = [torch.bucketize(torch.arange(len(side.tokens)), side.starts, right=True) for side in (self.queries, self.keys)]
        same = number[0][:, None] == number[1]
        return same & (self.queries.positions[:, None] >= self.keys.positions) if self.causal else same


Visible = Tensor | Neighbourhood | Segments | None
_MOST, _WIDEST = 32, 128  # Hypotheses and width of keys of the kernel for decoding: more need more shared memory than some GPUs have.


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    """Return the weighted sum of values, with weights from the scaled similarity of query and key (paper 3.2.1, eq. 1).

    Args:
        query: (B, H, T, d_k).
        key: (B, H, S, d_k).
        value: (B, H, S, d_v).
        mask: broadcastable to (B, H, T, S); True where attention is allowed, at least once in each row; or its `bias_of`. None allows all.
        dropout: dropout of the weights.

    Returns:
        (B, H, T, d_v).
    """
    if query.device.type == "cpu" and torch.is_grad_enabled():
        return _trained_on_cpu(query, key, value, mask, dropout)
    dropped = dropout.probability if dropout.training else 0.0
    bias = None if mask is None else bias_of(mask, query.dtype)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropped)


def _trained_on_cpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    """Compute `scaled_dot_product_attention` by unfused operations, at least in float32.

    On sentences of some 20 tokens the backward pass of PyTorch's fused CPU kernel takes about seven times as long. In bf16 a kernel is
    generated for each new shape of a batched product, which takes longer than the product; float32 needs no such kernel.
    """
    exact = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        q, k, v = (projected.to(exact, memory_format=torch.contiguous_format) for projected in (query, key, value))
        return (dropout(attention_weights(q, k, mask)) @ v).to(query.dtype)


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(Q K^T / sqrt(d_k)), (B, H, T, S), with forbidden positions at minus infinity before the softmax.

    Shapes are those of `scaled_dot_product_attention`.
    """
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    return (scores if mask is None else scores + bias_of(mask, query.dtype)).softmax(dim=-1)


def packed_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """Return the weighted sum of values within packed sentences, without a score between two of them on a GPU.

    Shapes are those of `scaled_dot_product_attention` with B = 1. On a GPU the type is bf16 or fp16.
    """
    if query.device.type == "cpu":
        return scaled_dot_product_attention(query, key, value, segments.mask(), Dropout(0.0))
    q, k, v = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    if segments.short:
        from transformer_core.models.short_attention import short_attention  # It needs Triton, which a CPU's torch has not.

        attended = short_attention(q, k, v, segments.queries, segments.keys, segments.causal)
    else:
        from torch.nn.attention.varlen import varlen_attn  # It imports torch's compiler, which takes more than a second.

        starts, window = (segments.queries.starts, segments.keys.starts), (-1, 0) if segments.causal else (-1, -1)
        longest = segments.queries.longest, segments.keys.longest
        attended = varlen_attn(q, k, v, *starts, *longest, window_size=window)  # type: ignore[assignment]  # Without the optional tuple.
    return attended.transpose(0, 1)[None]


def restricted_attention(query: Tensor, key: Tensor, value: Tensor, neighbourhood: Neighbourhood, dropout: Dropout) -> Tensor:
    """Return the weighted sum of values over r positions per query: O(r T) scores without a (T, S) matrix (paper 4, Table 1).

    Shapes are those of `scaled_dot_product_attention`.
    """
    weights = dropout(_restricted_weights(query, key, neighbourhood))
    return (weights[:, :, :, None, :] @ _gather(value, neighbourhood.positions)).squeeze(3)


def _restricted_weights(query: Tensor, key: Tensor, neighbourhood: Neighbourhood) -> Tensor:
    """Return the weights of the neighbourhood, (B, H, T, r)."""
    near = _gather(key, neighbourhood.positions)
    scores = (near @ (query * query.shape[-1] ** -0.5)[..., None]).squeeze(-1)
    return scores.masked_fill(~neighbourhood.allowed[:, None], -torch.inf).softmax(dim=-1)


def _gather(memory: Tensor, positions: Tensor) -> Tensor:
    """Gather the rows of a memory (B, H, S, d) at positions (B or 1, T, r): (B, H, T, r, d)."""
    if len(positions) == 1:
        return memory[:, :, positions[0]]
    sentences = torch.arange(len(memory), device=memory.device)[:, None, None]
    return memory.transpose(1, 2)[sentences, positions].movedim(3, 1)


def bias_of(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias added to scores, given a mask or a bias: 0 where attention is allowed, minus infinity elsewhere."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else mask.to(dtype)


class MultiHeadAttention(nn.Module):
    """h parallel attentions on projections of query, key and value (paper 3.2.2); the projections have no bias.

    Attributes:
        narrow: whether keys and values are of one width, and not too wide for a kernel.
        has_kernel: whether to use, in decoding, the kernel of decoding_attention.py.
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.narrow = size.d_k == size.d_v <= _WIDEST
        self.has_kernel = False
        self.dropout = Dropout(size.attention_dropout)
        self.query = nn.Linear(size.d_model, size.heads * size.d_k, bias=False)
        self.key = nn.Linear(size.d_model, size.heads * size.d_k, bias=False)
        self.value = nn.Linear(size.d_model, size.heads * size.d_v, bias=False)
        self.output = nn.Linear(size.heads * size.d_v, size.d_model, bias=False)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)
        self._recorded: list[Tensor] | None = None

    def keys_and_values(self, memory: Tensor) -> KeysAndValues:
        """Project the memory: (B, S, D) to key (B, H, S, d_k) and value (B, H, S, d_v)."""
        return KeysAndValues(*self._projected(memory, self.key, self.value))

    def queries(self, x: Tensor) -> Tensor:
        """Project the queries: (B, T, D) to (B, H, T, d_k)."""
        return self._split(self.query(x))

    def forward(self, query: Tensor, memory: KeysAndValues, visible: Visible, decoding: bool = False) -> Tensor:
        """Attend to a projected memory.

        Args:
            query: (B, H, T, d_k), see `queries`.
            memory: key (B, H, S, d_k) and value (B, H, S, d_v).
            visible: a mask as in `scaled_dot_product_attention`, or a neighbourhood, or packed sentences; None allows all.
            decoding: True if T is the K hypotheses of decoding; on so few queries PyTorch's fused CPU kernel takes about 1.6 times as long.

        Returns:
            (B, T, D).
        """
        if self._recorded is not None:
            self._recorded.append(_all_weights(query, memory.key, visible).detach())
        if isinstance(visible, Neighbourhood):
            attended = restricted_attention(query, memory.key, memory.value, visible, self.dropout)
        elif isinstance(visible, Segments):
            attended = packed_attention(query, memory.key, memory.value, visible)
        elif decoding and self.has_kernel and isinstance(visible, Tensor) and query.shape[2] <= _MOST:
            from transformer_core.models.decoding_attention import decoding_attention  # It needs Triton, which a CPU's torch has not.

            attended = decoding_attention(query, memory.key, memory.value, visible)
        elif decoding and query.device.type == "cpu":
            attended = attention_weights(query, memory.key, visible) @ memory.value
        else:
            attended = scaled_dot_product_attention(query, memory.key, memory.value, visible, self.dropout)
        return self.output(attended.transpose(1, 2).flatten(2))

    @contextmanager
    def recording(self) -> Iterator[list[Tensor]]:
        """Record the weights (B, H, T, S) of each call within the block, before dropout; they are computed separately, unfused."""
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None

    def _projected(self, x: Tensor, *projections: nn.Linear) -> list[Tensor]:
        """Apply projections to the same (B, T, D) and split their results into heads; on a GPU in training by one product for all."""
        if x.device.type == "cpu" or not self.training:
            return [self._split(projection(x)) for projection in projections]
        weights = [projection.weight for projection in projections]
        parts = _Parts.apply(functional.linear(x, torch.cat(weights)), [len(weight) for weight in weights])  # type: ignore[no-untyped-call]
        return [self._split(part) for part in parts]

    def _split(self, x: Tensor) -> Tensor:
        """Split (B, T, H*d) into heads: (B, H, T, d)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _Parts(Function):
    """Parts of the last dimension; their gradients are not copied if they lie side by side in this order, as those of `short_attention`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, widths: list[int]) -> tuple[Tensor, ...]:  # noqa: ARG004
        return x.split(widths, dim=-1)

    @staticmethod
    def backward(ctx: Any, *parts: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        first, width = parts[0], sum(part.shape[-1] for part in parts)
        shape, strides = (*first.shape[:-1], width), (*first.stride()[:-2], width, 1)
        place = first.storage_offset()
        for part in parts:
            beside = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and part.storage_offset() == place
            if not beside or part.stride() != strides:
                return torch.cat(parts, dim=-1), None
            place += part.shape[-1]
        return first.as_strided(shape, strides), None


class SelfAttention(MultiHeadAttention):
    """Attention whose query, key and value are projections of the same positions."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__(size)
        self._widths = [size.heads * width for width in (size.d_k, size.d_k, size.d_v)]
        self._fused: nn.Linear | None = None

    def project(self, x: Tensor) -> tuple[Tensor, KeysAndValues]:
        """Project (B, T, D) to query (B, H, T, d_k), key (B, H, T, d_k) and value (B, H, T, d_v)."""
        if self._fused is None:
            key, value, query = self._projected(x, self.key, self.value, self.query)
            return query, KeysAndValues(key, value)
        query, key, value = map(self._split, self._fused(x).split(self._widths, dim=-1))
        return query, KeysAndValues(key, value)

    def fuse(self) -> None:
        """Replace the three projections by one, which is faster for the few rows of decoding."""
        weight = torch.cat([part.weight.detach() for part in (self.query, self.key, self.value)])
        self._fused = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self._fused.weight = nn.Parameter(weight)
        del self.query, self.key, self.value


def _all_weights(query: Tensor, key: Tensor, visible: Visible) -> Tensor:
    if not isinstance(visible, Neighbourhood):
        assert not isinstance(visible, Segments)  # No packed batch is recorded.
        return attention_weights(query, key, visible)
    near = _restricted_weights(query, key, visible)
    everywhere = near.new_zeros(*near.shape[:3], key.shape[2])
    # A position that is not allowed may repeat another position, with a weight of 0; so weights are added instead of written.
    return everywhere.scatter_add(3, visible.positions[:, None].expand_as(near), near)
