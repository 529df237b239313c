"""Scaled dot-product attention and multi-head attention (paper 3.2)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transformer_core.models.embeddings import Dropout
from transformer_core.presets import TransformerSize


class KeysAndValues(NamedTuple):
    """Projected memory of an attention: key (B, H, S, d_k) and value (B, H, S, d_v)."""

    key: Tensor
    value: Tensor


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
    return dropout(attention_weights(query, key, mask)) @ value


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(Q K^T / sqrt(d_k)), (B, H, T, S), with forbidden positions at minus infinity before the softmax.

    Shapes are those of `scaled_dot_product_attention`.
    """
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    return (scores if mask is None else scores + bias_of(mask, query.dtype)).softmax(dim=-1)


def bias_of(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bias added to scores, given a mask or a bias: 0 where attention is allowed, minus infinity elsewhere."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else mask.to(dtype)


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, Dropout], Tensor]


class MultiHeadAttention(nn.Module):
    """h parallel attentions on projections of query, key and value (paper 3.2.2); the paper's projections have no bias."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.attend: Attend = scaled_dot_product_attention  # Or a faster function with the same result (ops/choice.py).
        self.dropout = Dropout(size.attention_dropout)
        self.query = nn.Linear(size.d_model, size.heads * size.d_k, size.attention_bias)
        self.key = nn.Linear(size.d_model, size.heads * size.d_k, size.attention_bias)
        self.value = nn.Linear(size.d_model, size.heads * size.d_v, size.attention_bias)
        self.output = nn.Linear(size.heads * size.d_v, size.d_model, size.attention_bias)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)
            if size.attention_bias:
                nn.init.zeros_(linear.bias)

    def keys_and_values(self, memory: Tensor) -> KeysAndValues:
        """Project the memory: (B, S, D) to key (B, H, S, d_k) and value (B, H, S, d_v)."""
        return KeysAndValues(self.split(self.key(memory)), self.split(self.value(memory)))

    def queries(self, x: Tensor) -> Tensor:
        """Project the queries: (B, T, D) to (B, H, T, d_k)."""
        return self.split(self.query(x))

    def project(self, x: Tensor) -> tuple[Tensor, KeysAndValues]:
        """Project (B, T, D), of self-attention, to query (B, H, T, d_k), key (B, H, T, d_k) and value (B, H, T, d_v)."""
        memory = self.keys_and_values(x)
        return self.queries(x), memory

    def forward(self, query: Tensor, memory: KeysAndValues, mask: Tensor | None) -> Tensor:
        """Attend with projected queries (B, H, T, d_k) to a projected memory, masked as `scaled_dot_product_attention`: (B, T, D)."""
        attended = self.attend(query, memory.key, memory.value, mask, self.dropout)
        return self.output(attended.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """Split (B, T, H*d) into heads: (B, H, T, d)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
