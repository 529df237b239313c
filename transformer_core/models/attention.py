"""Scaled dot-product and multi-head attention (paper 3.2)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.dropout import Dropout
from transformer_core.presets import TransformerSize


class KeysAndValues(NamedTuple):
    """Projected memory of an attention: key (B, H, S, d_k) and value (B, H, S, d_v)."""

    key: Tensor
    value: Tensor


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
    """Weighted sum of values, weights from the scaled similarity of query and key (paper 3.2.1, eq. 1).

    Args:
        query: (B, H, T, d_k).
        key: (B, H, S, d_k).
        value: (B, H, S, d_v).
        mask: broadcastable to (B, H, T, S); True where attention is allowed, somewhere in each row. None allows all.
        dropout: of the weights.

    Returns:
        (B, H, T, d_v).
    """
    bias = None if mask is None else torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
    # On sentences of some 20 tokens the backward pass of PyTorch's fused CPU kernel takes about seven times as long as these products.
    if query.device.type != "cpu" or not torch.is_grad_enabled():
        dropped = dropout.probability if dropout.training else 0.0
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropped)
    scores = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    return dropout(scores.softmax(dim=-1)) @ value


class MultiHeadAttention(nn.Module):
    """h attentions side by side on projections of query, key and value (paper 3.2.2); projections carry no bias."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.dropout = Dropout(size.attention_dropout)
        self.query = nn.Linear(size.d_model, size.heads * size.d_k, bias=False)
        self.key = nn.Linear(size.d_model, size.heads * size.d_k, bias=False)
        self.value = nn.Linear(size.d_model, size.heads * size.d_v, bias=False)
        self.output = nn.Linear(size.heads * size.d_v, size.d_model, bias=False)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)

    def keys_and_values(self, memory: Tensor) -> KeysAndValues:
        """Project what is attended to: (B, S, D) to key (B, H, S, d_k) and value (B, H, S, d_v)."""
        return KeysAndValues(self._split(self.key(memory)), self._split(self.value(memory)))

    def forward(self, x: Tensor, memory: KeysAndValues, mask: Tensor | None) -> Tensor:
        """Attend from x to a projected memory.

        Args:
            x: (B, T, D).
            memory: key (B, H, S, d_k) and value (B, H, S, d_v).
            mask: broadcastable to (B, H, T, S), True where attention is allowed. None allows all.

        Returns:
            (B, T, D).
        """
        attended = scaled_dot_product_attention(self._split(self.query(x)), memory.key, memory.value, mask, self.dropout)
        return self.output(attended.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, H*d) to (B, H, T, d)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
