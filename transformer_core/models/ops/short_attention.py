"""Attention within short packed sentences on a GPU: one Triton program for each sentence and head, which holds all of its scores.

FlashAttention works on blocks of 128 positions, of which a sentence of 27 tokens fills a fifth. Here a block is as long as the longest
sentence, rounded up to a power of 2. The backward pass computes the scores again, needs no other pass before or after it, and adds up in a
fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function

from transformer_core.models.ops.packed import Packed

_FAR = -1.0e30  # Not minus infinity: a row without keys would be no number.


@triton.jit
def _load(base, start, length, stride, head_stride, head, BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Load the rows of a sentence and head, (BLOCK, WIDE), zeros beyond its length and width."""
    row, column = tl.arange(0, BLOCK), tl.arange(0, WIDE)
    inside = (row < length)[:, None] & (column < WIDTH)[None, :]
    return tl.load(base + (start + row).to(tl.int64)[:, None] * stride + head * head_stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, value, start, length, stride, head_stride, head, BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Store the rows of a sentence and head."""
    row, column = tl.arange(0, BLOCK), tl.arange(0, WIDE)
    inside = (row < length)[:, None] & (column < WIDTH)[None, :]
    place = base + (start + row).to(tl.int64)[:, None] * stride + head * head_stride + column[None, :]
    tl.store(place, value.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _weights(query, key, queries, keys, scale, CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, FAR: tl.constexpr):
    """Return the attention weights, (BLOCK_Q, BLOCK_K), in float32."""
    scores = tl.dot(query, tl.trans(key)) * scale
    row, column = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    allowed = (column < keys)[None, :] & (row < queries)[:, None]
    if CAUSAL:
        allowed = allowed & (row[:, None] >= column[None, :])
    scores = tl.where(allowed, scores, FAR)
    exponentials = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return tl.where(allowed, exponentials / tl.sum(exponentials, axis=1)[:, None], 0.0)


@triton.jit
def _forward(
    query, key, value, out, query_starts, key_starts, q_row, q_head, k_row, k_head, v_row, v_head, scale, heads,
    CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    sentence, head = tl.program_id(0), tl.program_id(1)
    first_query, first_key = tl.load(query_starts + sentence), tl.load(key_starts + sentence)
    queries, keys = tl.load(query_starts + sentence + 1) - first_query, tl.load(key_starts + sentence + 1) - first_key
    if queries > 0:
        q = _load(query, first_query, queries, q_row, q_head, head, BLOCK_Q, WIDTH, WIDE)
        k = _load(key, first_key, keys, k_row, k_head, head, BLOCK_K, WIDTH, WIDE)
        v = _load(value, first_key, keys, v_row, v_head, head, BLOCK_K, WIDTH, WIDE)
        weights = _weights(q, k, queries, keys, scale, CAUSAL, BLOCK_Q, BLOCK_K, FAR)
        _store(out, tl.dot(weights.to(v.dtype), v), first_query, queries, heads * WIDTH, WIDTH, head, BLOCK_Q, WIDTH, WIDE)


@triton.jit
def _backward(
    query, key, value, upstream, query_gradient, key_gradient, value_gradient, query_starts, key_starts,
    q_row, q_head, k_row, k_head, v_row, v_head, u_row, u_head, scale,
    CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    sentence, head = tl.program_id(0), tl.program_id(1)
    first_query, first_key = tl.load(query_starts + sentence), tl.load(key_starts + sentence)
    queries, keys = tl.load(query_starts + sentence + 1) - first_query, tl.load(key_starts + sentence + 1) - first_key
    if queries + keys > 0:
        q = _load(query, first_query, queries, q_row, q_head, head, BLOCK_Q, WIDTH, WIDE)
        k = _load(key, first_key, keys, k_row, k_head, head, BLOCK_K, WIDTH, WIDE)
        v = _load(value, first_key, keys, v_row, v_head, head, BLOCK_K, WIDTH, WIDE)
        u = _load(upstream, first_query, queries, u_row, u_head, head, BLOCK_Q, WIDTH, WIDE)
        weights = _weights(q, k, queries, keys, scale, CAUSAL, BLOCK_Q, BLOCK_K, FAR)
        _store(value_gradient, tl.dot(tl.trans(weights).to(u.dtype), u), first_key, keys, v_row, v_head, head, BLOCK_K, WIDTH, WIDE)
        of_weights = tl.dot(u, tl.trans(v))
        of_scores = weights * (of_weights - tl.sum(weights * of_weights, axis=1)[:, None]) * scale
        of_scores = of_scores.to(q.dtype)
        _store(query_gradient, tl.dot(of_scores, k), first_query, queries, q_row, q_head, head, BLOCK_Q, WIDTH, WIDE)
        _store(key_gradient, tl.dot(tl.trans(of_scores), q), first_key, keys, k_row, k_head, head, BLOCK_K, WIDTH, WIDE)


class _ShortAttention(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, queries: Packed, keys: Packed, causal: bool) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        strides = [step for side in (query, key, value) for step in side.stride()[:2]]
        sizes, warps = _sizes(query, queries.longest, keys.longest)
        scale, heads = query.shape[2] ** -0.5, query.shape[1]
        grid = (len(queries.starts) - 1, heads)
        _forward[grid](query, key, value, out, queries.starts, keys.starts, *strides, scale, heads, causal, *sizes, num_warps=warps)
        ctx.save_for_backward(query, key, value, queries.starts, keys.starts)
        ctx.constants = grid, scale, causal, sizes, warps
        return out

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *starts = ctx.saved_tensors
        grid, scale, causal, sizes, warps = ctx.constants
        upstream = upstream if upstream.stride(2) == 1 else upstream.contiguous()
        gradients = _laid_out_alike(query, key, value)
        strides = [step for side in (query, key, value, upstream) for step in side.stride()[:2]]
        _backward[grid](query, key, value, upstream, *gradients, *starts, *strides, scale, causal, *sizes, num_warps=warps)
        return *gradients, None, None, None


def _laid_out_alike(*sides: Tensor) -> list[Tensor]:
    """Return a new tensor for each, with the same strides: those of parts of one tensor are parts of one tensor."""
    wholes = {side.untyped_storage().data_ptr(): side for side in sides}
    buffers = {place: side.new_empty(side.untyped_storage().nbytes() // side.element_size()) for place, side in wholes.items()}
    return [buffers[side.untyped_storage().data_ptr()].as_strided(side.shape, side.stride(), side.storage_offset()) for side in sides]


def _sizes(query: Tensor, longest_query: int, longest_key: int) -> tuple[tuple[int | float, ...], int]:
    """Return the constants of the kernels and their number of warps."""
    blocks = tuple(max(16, triton.next_power_of_2(longest)) for longest in (longest_query, longest_key))
    width = query.shape[2]
    return (*blocks, width, max(16, triton.next_power_of_2(width)), _FAR), 8 if max(blocks) > 64 else 4 if max(blocks) > 32 else 2


def short_attention(query: Tensor, key: Tensor, value: Tensor, queries: Packed, keys: Packed, causal: bool) -> Tensor:
    """Return the weighted sum of values within packed sentences.

    Args:
        query: (n, H, d) in bf16 or fp16, the last dimension contiguous; every row belongs to a sentence.
        key: (m, H, d), and value likewise.
        queries: the sentences of the queries, of at most 128 tokens; keys likewise.
        causal: whether a query sees no later key.

    Returns:
        (n, H, d), contiguous.
    """
    return _ShortAttention.apply(query, key, value, queries, keys, causal)
