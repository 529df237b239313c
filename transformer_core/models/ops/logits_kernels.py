"""Rows of logits on a GPU, a Triton program for each: what a search needs of one, which is read once, and the loss.

The loss reads a row twice and overwrites it once with the gradient. Its formulas are those of training/loss.py. A row with the target -1 is
filling: it has no loss, and its gradient is 0.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LINES = 4  # Of blocks, read at a time.
_FAR = -1.0e30  # Not minus infinity: the difference of two is no number.
_WARPS = 8
_BLOCK = 8 * 32 * _WARPS  # Columns of the loss: each thread reads 16 bytes of bf16 in one.


@triton.jit
def _normaliser(
    logits, normalisers, maxima, row_stride,
    VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, WIDE: tl.constexpr, LINES: tl.constexpr, FORBIDDEN: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column, line = tl.arange(0, WIDE)[None, :], tl.arange(0, LINES)[:, None]
    # A maximum and a sum for each block, so that threads wait for each other only after the last line.
    largest = tl.full((WIDE,), FAR, tl.float32)
    exponentials = tl.zeros((WIDE,), tl.float32)
    allowed = tl.full((WIDE,), -float("inf"), tl.float32)
    for first in range(0, VOCABULARY, LINES * BLOCKS):
        place = first + line * BLOCKS + column
        part = tl.load(logits + row * row_stride + place, mask=(column < BLOCKS) & (place < VOCABULARY), other=-float("inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(part, axis=0))
        exponentials = exponentials * tl.exp(largest - new) + tl.sum(tl.exp(part - new[None, :]), axis=0)
        largest = new
        counted = (place >= FORBIDDEN) & (place < VOCABULARY // BLOCKS * BLOCKS)
        allowed = tl.maximum(allowed, tl.max(tl.where(counted, part, -float("inf")), axis=0))
    top = tl.max(largest)
    tl.store(normalisers + row, top + tl.log(tl.sum(exponentials * tl.exp(largest - top))))
    block = tl.arange(0, WIDE)
    tl.store(maxima + row * BLOCKS + block, allowed.to(maxima.dtype.element_ty), mask=block < BLOCKS)


def normaliser_and_maxima(logits: Tensor, blocks: int, forbidden: int) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp of each row, (R,) in float32, and the largest logit of each block of equally spaced columns, (R, blocks).

    Args:
        logits: (R, V) in bf16, fp16 or float32, rows contiguous.
        blocks: block b has the columns b, b + blocks and so on, as many as all blocks have.
        forbidden: number of first columns that no maximum counts.
    """
    rows, vocabulary = logits.shape
    normalisers = torch.empty(rows, dtype=torch.float32, device=logits.device)
    maxima = torch.empty(rows, blocks, dtype=logits.dtype, device=logits.device)
    sizes = (vocabulary, blocks, triton.next_power_of_2(blocks), _LINES, forbidden, _FAR)
    with torch.cuda.device_of(logits):  # Triton takes the thread's; a replica on another GPU decodes in a thread of its own.
        _normaliser[(rows,)](logits, normalisers, maxima, logits.stride(0), *sizes, num_warps=_WARPS)
    return normalisers, maxima


@triton.jit
def _loss(logits, targets, losses, row_stride, confidence, others, VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * row_stride
    target = tl.load(targets + row)
    target_logit = tl.load(start + tl.maximum(target, 0)).to(tl.float32)  # Before the sums, after which it is overwritten.
    place = tl.arange(0, BLOCKS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    # A maximum and two sums for each place in a block, so that threads wait for each other only after the last block.
    largest = tl.full((BLOCK,), -1.0e30, tl.float32)
    exponentials = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, VOCABULARY, BLOCKS * BLOCK):
        inside = first + place < VOCABULARY
        part = tl.load(start + first + place, mask=inside, other=-float("inf")).to(tl.float32)
        total += tl.sum(tl.where(inside, part, 0.0), axis=0)
        new = tl.maximum(largest, tl.max(part, axis=0))
        exponentials = exponentials * tl.exp(largest - new) + tl.sum(tl.exp(part - new[None, :]), axis=0)
        largest = new
    top = tl.max(largest)
    normaliser = top + tl.log(tl.sum(exponentials * tl.exp(largest - top)))
    real = target >= 0
    tl.store(losses + 2 * row, tl.where(real, normaliser - confidence * target_logit - others * tl.sum(total), 0.0))
    tl.store(losses + 2 * row + 1, tl.where(real, normaliser - target_logit, 0.0))
    for first in range(0, VOCABULARY, BLOCKS * BLOCK):
        column = first + place
        inside = column < VOCABULARY
        part = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.exp(part - normaliser) - others - tl.where(column == target, confidence, 0.0)
        tl.store(start + column, tl.where(real, gradient, 0.0).to(logits.dtype.element_ty), mask=inside)


def gradient_in_place(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Overwrite logits (r, V) with the loss's gradient with respect to them.

    Args:
        logits: in bf16, fp16 or float32, rows contiguous.
        targets: (r,) token ids, or -1.
        label_smoothing: eps_ls (paper 5.4).

    Returns:
        (2,) float32: sums over rows of the label-smoothed loss and of the negative log-likelihood.
    """
    rows, vocabulary = logits.shape
    others = label_smoothing / (vocabulary - 1)
    losses = torch.empty(rows, 2, dtype=torch.float32, device=logits.device)
    numbers = (logits.stride(0), 1 - label_smoothing - others, others)
    _loss[(rows,)](logits, targets, losses, *numbers, vocabulary, _LINES, _BLOCK, num_warps=_WARPS)
    return losses.sum(dim=0)
