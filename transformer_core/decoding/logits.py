"""What a search asks of a row of logits, without a copy of all of them in a higher precision."""

import torch
from torch import Tensor

# Columns that rows are folded into: what is reduced is then strided, and a multiple of the width of a vector wide (ten times as fast).
_FOLD = 64
# Logits that are worked on at a time on a CPU: 4 MiB in float32, which stay in its cache.
_AT_ONCE = 1 << 20


def logsumexp(logits: Tensor) -> Tensor:
    """log sum exp of each row, (R, V) to (R,), in float32 at least; about three times as fast as torch.logsumexp on a CPU."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    rows = max(1, _AT_ONCE // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    top = logits.amax(dim=1).to(exact)
    parts = zip(logits.split(rows), top[:, None].split(rows), strict=True)
    sums = [_sums(part.to(exact, copy=True).sub_(greatest).exp_()) for part, greatest in parts]
    return top + torch.cat(sums).log_()


def greatest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest of each row and where they stand, both (R, count); about three times as fast as topk on a CPU.

    A row is folded into blocks, each of logits that stand the same distance apart. Where a block's greatest is not among the `count`
    greatest of blocks, none of the block is among the greatest of the row, so topk has so many blocks to look through and what was
    left over in folding.
    """
    folded, rest = _folded(logits)
    size, blocks = folded.shape[1:]
    if size == 0 or blocks <= count:
        return logits.topk(count, dim=1)
    chosen = folded.amax(dim=1).topk(count, dim=1).indices[:, None]
    inside = folded.gather(2, chosen.expand(-1, size, -1)).flatten(1)
    places = (chosen + torch.arange(0, size * blocks, blocks, device=logits.device)[:, None]).flatten(1)
    left = torch.arange(size * blocks, logits.shape[1], device=logits.device).expand(len(logits), -1)
    best, order = torch.cat((inside, rest), dim=1).topk(count, dim=1)
    return best, torch.cat((places, left), dim=1).gather(1, order)


def _sums(rows: Tensor) -> Tensor:
    """Of each row, in an order that depends on its length alone: torch shares out the sum of a single long row among threads."""
    folded, rest = _folded(rows)
    return torch.cat((folded.sum(dim=1), rest), dim=1).sum(dim=1)


def _folded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(R, V) as (R, size, blocks), about as long as wide where V allows it, and the columns left over."""
    blocks = max(1, rows.shape[1] // _FOLD**2) * _FOLD
    size = rows.shape[1] // blocks
    return rows[:, : size * blocks].unflatten(1, (size, blocks)), rows[:, size * blocks :]
