"""Attention within short packed sentences on a GPU: one Triton program for each sentence and head, which holds all of its scores.

FlashAttention works on blocks of 128 positions, of which a sentence of 27 tokens fills a fifth. Here a block is as long as the longest
sentence, rounded up to a power of 2. The backward pass computes the scores again, needs no other pass before or after it, and adds up in a
fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_FAR = -1.0e30  # Not minus infinity: a row without keys would be no number.


@triton.jit
def _load(base, start, length, stride, head_stride, head, BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Load the rows of a sentence and head, (BLOCK, WIDE), zeros beyond its length and width."""
    row, column = tl.arange(0, BLOCK), tl.arange(0, WIDE)
    inside = (row < length)[:, None] & (column < WIDTH)[None, :]
    return tl.load(base + (start + row).to(tl.int64)[:, None] * stride + head * head_stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def _store(base, value, start, length, heads, head, BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Store the rows of a sentence and head into a contiguous (n, H, WIDTH) tensor."""
    row, column = tl.arange(0, BLOCK), tl.arange(0, WIDE)
    inside = (row < length)[:, None] & (column < WIDTH)[None, :]
    place = ((start + row).to(tl.int64)[:, None] * heads + head) * WIDTH + column[None, :]
    tl.store(base + place, value.to(base.dtype.element_ty), mask=inside)


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
        _store(out, tl.dot(weights.to(v.dtype), v), first_query, queries, heads, head, BLOCK_Q, WIDTH, WIDE)


@triton.jit
def _backward(
    query, key, value, upstream, query_gradient, key_gradient, value_gradient, query_starts, key_starts,
    q_row, q_head, k_row, k_head, v_row, v_head, u_row, u_head, scale, heads,
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
        _store(value_gradient, tl.dot(tl.trans(weights).to(u.dtype), u), first_key, keys, heads, head, BLOCK_K, WIDTH, WIDE)
        of_weights = tl.dot(u, tl.trans(v))
        of_scores = weights * (of_weights - tl.sum(weights * of_weights, axis=1)[:, None]) * scale
        of_scores = of_scores.to(q.dtype)
        _store(query_gradient, tl.dot(of_scores, k), first_query, queries, heads, head, BLOCK_Q, WIDTH, WIDE)
        _store(key_gradient, tl.dot(tl.trans(of_scores), q), first_key, keys, heads, head, BLOCK_K, WIDTH, WIDE)


@torch.library.custom_op("transformer_core::short_attention", mutates_args=())
def short_attention(
    query: Tensor, key: Tensor, value: Tensor, query_starts: Tensor, key_starts: Tensor, longest_query: int, longest_key: int, causal: bool
) -> Tensor:
    """Return the weighted sum of values within packed sentences.

    Args:
        query: (n, H, d) in bf16 or fp16, the last dimension contiguous; every row belongs to a sentence.
        key: (m, H, d), and value likewise.
        query_starts: (B+1,) int32, first row of each sentence, and n; key_starts likewise.
        longest_query: at least the tokens of the longest sentence, at most 128; longest_key likewise.
        causal: whether a query sees no later key.

    Returns:
        (n, H, d), contiguous.
    """
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    sizes, warps = _sizes(query, longest_query, longest_key)
    strides = [step for side in (query, key, value) for step in side.stride()[:2]]
    grid = (len(query_starts) - 1, query.shape[1])
    _forward[grid](
        query, key, value, out, query_starts, key_starts, *strides, query.shape[2] ** -0.5, query.shape[1], causal, *sizes, num_warps=warps
    )
    return out


@torch.library.custom_op("transformer_core::short_attention_backward", mutates_args=())
def _short_attention_backward(
    upstream: Tensor, query: Tensor, key: Tensor, value: Tensor, query_starts: Tensor, key_starts: Tensor,
    longest_query: int, longest_key: int, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    upstream = upstream if upstream.stride(2) == 1 else upstream.contiguous()
    gradients = tuple(torch.empty(side.shape, dtype=side.dtype, device=side.device) for side in (query, key, value))
    sizes, warps = _sizes(query, longest_query, longest_key)
    strides = [step for side in (query, key, value, upstream) for step in side.stride()[:2]]
    grid = (len(query_starts) - 1, query.shape[1])
    _backward[grid](
        query, key, value, upstream, *gradients, query_starts, key_starts, *strides, query.shape[2] ** -0.5, query.shape[1], causal, *sizes,
        num_warps=warps,
    )  # fmt: skip
    return gradients[0], gradients[1], gradients[2]


def _sizes(query: Tensor, longest_query: int, longest_key: int) -> tuple[tuple[int | float, ...], int]:
    """Return the constants of the kernels and their number of warps."""
    blocks = tuple(max(16, triton.next_power_of_2(longest)) for longest in (longest_query, longest_key))
    width = query.shape[2]
    return (*blocks, width, max(16, triton.next_power_of_2(width)), _FAR), 8 if max(blocks) > 64 else 4 if max(blocks) > 32 else 2


@short_attention.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


@_short_attention_backward.register_fake
def _(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *__: object) -> tuple[Tensor, Tensor, Tensor]:
    one, two, three = (torch.empty(side.shape, dtype=side.dtype, device=side.device) for side in (query, key, value))
    return one, two, three


def _save(ctx: object, inputs: tuple[object, ...], output: object) -> None:  # noqa: ARG001  # Called by name.
    ctx.save_for_backward(*inputs[:5])  # type: ignore[attr-defined]
    ctx.others = inputs[5:]  # type: ignore[attr-defined]


def _gradients(ctx: object, upstream: Tensor) -> tuple[Tensor | None, ...]:
    saved, others = ctx.saved_tensors, ctx.others  # type: ignore[attr-defined]
    return (*_short_attention_backward(upstream, *saved, *others), None, None, None, None, None)


short_attention.register_autograd(_gradients, setup_context=_save)
