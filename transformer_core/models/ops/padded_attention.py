"""Faster ways to compute `scaled_dot_product_attention`, with its arguments and result, and the projections of self-attention."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, MultiHeadAttention, bias_of, scaled_dot_product_attention
from transformer_core.models.embeddings import Dropout
from transformer_core.models.precision import can_compile

_MOST, _WIDEST = 32, 128  # Hypotheses and width of keys of the kernel for decoding: more need more shared memory than some GPUs have.


def in_float32(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    """Compute in float32 at least, for a training on a CPU.

    On sentences of some 20 tokens the backward pass of PyTorch's fused CPU kernel takes about seven times as long. In bf16 a kernel is
    generated for each new shape of a batched product, which takes longer than the product; float32 needs no such kernel.
    """
    exact = torch.promote_types(query.dtype, torch.float32)
    with torch.autocast("cpu", enabled=False):
        q, k, v = (projected.to(exact, memory_format=torch.contiguous_format) for projected in (query, key, value))
        return scaled_dot_product_attention(q, k, v, mask, dropout).to(query.dtype)


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    """Compute by a fused kernel of PyTorch, for a GPU."""
    dropped = dropout.probability if dropout.training else 0.0
    bias = None if mask is None else bias_of(mask, query.dtype)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropped)


def of_hypotheses(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    """Compute by the Triton kernel for the hypotheses of decoding, for a GPU that it can be compiled for; whole sequences by `fused`.

    Keys and values that are decoded with are laid out head by head; no others are.
    """
    fits = query.dtype != torch.float64 and query.shape[2] <= _MOST and key.shape[3] == value.shape[3] <= _WIDEST
    if mask is None or not fits or key.stride(2) != key.shape[3] or not can_compile(query.device):
        return fused(query, key, value, mask, dropout)
    from transformer_core.models.ops.decoding_attention import decoding_attention  # It needs Triton, which a CPU's torch has not.

    return decoding_attention(query, key, value, mask)


class FusedSelfAttention(MultiHeadAttention):
    """A self-attention for decoding only, with the modules of another one: its three projections are one product.

    That is faster for the few rows of decoding.
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        nn.Module.__init__(self)
        self.heads, self.attend, self.dropout, self.output = attention.heads, attention.attend, attention.dropout, attention.output
        parts = (attention.query, attention.key, attention.value)
        self._widths = [len(part.weight) for part in parts]
        has_bias = attention.query.bias is not None
        self._projection = nn.Linear(attention.query.in_features, sum(self._widths), has_bias, device="meta")
        self._projection.weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]))
        if has_bias:
            self._projection.bias = nn.Parameter(torch.cat([part.bias.detach() for part in parts]))

    def project(self, x: Tensor) -> tuple[Tensor, KeysAndValues]:
        query, key, value = map(self.split, self._projection(x).split(self._widths, dim=-1))
        return query, KeysAndValues(key, value)
