"""What a search asks of a row of logits, without a copy of all of them in a higher precision."""

import torch
from torch import Tensor

# Where a block's greatest logit is not among the greatest of all blocks, none of the block is among the greatest of the row.
_BLOCK = 64
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


def _sums(rows: Tensor) -> Tensor:
    """Of each row, in an order that depends on its length alone: torch shares out the sum of a single long row among threads."""
    blocks = rows.shape[1] // _BLOCK
    parts = rows[:, : blocks * _BLOCK].unflatten(1, (_BLOCK, blocks)).sum(dim=1)
    return torch.cat((parts, rows[:, blocks * _BLOCK :]), dim=1).sum(dim=1)


def greatest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest of each row and where they stand, both (R, count); about three times as fast as topk on a CPU."""
    blocks = logits.shape[1] // _BLOCK
    if blocks < 2 * count:
        return logits.topk(count, dim=1)
    even = logits[:, : blocks * _BLOCK].unflatten(1, (_BLOCK, blocks))
    chosen = even.amax(dim=1).topk(count, dim=1).indices[:, None]
    inside = even.gather(2, chosen.expand(-1, _BLOCK, -1)).flatten(1)
    places = (chosen + torch.arange(0, blocks * _BLOCK, blocks, device=logits.device)[:, None]).flatten(1)
    rest = torch.arange(blocks * _BLOCK, logits.shape[1], device=logits.device).expand(len(logits), -1)
    best, order = torch.cat((inside, logits[:, blocks * _BLOCK :]), dim=1).topk(count, dim=1)
    return best, torch.cat((places, rest), dim=1).gather(1, order)
