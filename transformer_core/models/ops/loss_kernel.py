"""Label-smoothed cross-entropy on a GPU: one Triton program for each row of logits, which it reads twice and overwrites once.

Its formulas are those of training/loss.py. A row with the target -1 is filling: it has no loss, and its gradient is 0.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 8
_BLOCK = 8 * 32 * _WARPS  # Columns: each thread reads 16 bytes of bf16 in one.
_BLOCKS = 4  # Read at a time.


@triton.jit
def _kernel(logits, targets, losses, row_stride, confidence, others, VOCABULARY: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
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
    _kernel[(rows,)](logits, targets, losses, *numbers, vocabulary, _BLOCKS, _BLOCK, num_warps=_WARPS)
    return losses.sum(dim=0)
