"""What a search needs of a row of logits on a GPU, in one Triton program for each row, which reads it once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LINES = 4  # Read at a time.
_FAR = -1.0e30  # Not minus infinity: the difference of two is no number.


@triton.jit
def _kernel(
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
        _kernel[(rows,)](logits, normalisers, maxima, logits.stride(0), *sizes, num_warps=8)
    return normalisers, maxima
