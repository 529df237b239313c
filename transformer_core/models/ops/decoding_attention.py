"""Attention of a few hypotheses on a GPU: one Triton program for each sentence and head, which skips blocks that no hypothesis sees."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64  # Slots.
_FAR = -1.0e30  # Not minus infinity: the difference of two is no number.


@triton.jit
def _kernel(
    query, key, value, bias, out, q_sentence, q_head, q_row, k_sentence, k_head, v_sentence, v_head, b_sentence, b_row,
    hypotheses, slots, scale,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    sentence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDE)
    rows, columns = (row < hypotheses)[:, None], (column < WIDTH)[None, :]
    q = tl.load(query + sentence * q_sentence + head * q_head + row[:, None] * q_row + column[None, :], mask=rows & columns, other=0.0)
    largest = tl.full((ROWS,), FAR, tl.float32)
    normaliser = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDE), tl.float32)
    for first in range(0, slots, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        seen = rows & (slot < slots)[None, :]
        added = tl.load(bias + sentence * b_sentence + row[:, None] * b_row + slot[None, :], mask=seen, other=FAR).to(tl.float32)
        added = tl.maximum(added, FAR)
        if tl.max(added) > FAR:
            inside = (slot < slots)[:, None] & columns
            k = tl.load(key + sentence * k_sentence + head * k_head + slot[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
            v = tl.load(value + sentence * v_sentence + head * v_head + slot[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + added
            new = tl.maximum(largest, tl.max(scores, axis=1))
            weights = tl.where(added > FAR, tl.exp(scores - new[:, None]), 0.0)  # No number stays none.
            before = tl.exp(largest - new)
            normaliser = normaliser * before + tl.sum(weights, axis=1)
            total = total * before[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            largest = new
    place = ((sentence * tl.num_programs(1) + head) * hypotheses + row[:, None]) * WIDTH + column[None, :]
    tl.store(out + place, (total / normaliser[:, None]).to(out.dtype.element_ty), mask=rows & columns)


def decoding_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Return `scaled_dot_product_attention` without gradients.

    Args:
        query: (B, H, K, d), the last dimension contiguous; K is at most 32, and d 128.
        key: (B, H, C, d), the last two dimensions contiguous, and value likewise.
        bias: (B, 1, K or 1, C), see `bias_of`; each hypothesis sees a slot.

    Returns:
        (B, H, K, d), contiguous.
    """
    batch, heads, hypotheses, width = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    strides = (*query.stride()[:3], *key.stride()[:2], *value.stride()[:2], bias.stride(0), bias.stride(2) * (bias.shape[2] > 1))
    sizes = (width, max(16, triton.next_power_of_2(width)), max(16, triton.next_power_of_2(hypotheses)), _BLOCK, _FAR)
    with torch.cuda.device_of(query):  # Triton takes the thread's; a replica on another GPU decodes in a thread of its own.
        _kernel[(batch, heads)](query, key, value, bias, out, *strides, hypotheses, key.shape[2], width**-0.5, *sizes, num_warps=4)
    return out
