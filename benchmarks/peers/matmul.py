"""Speed of products of two 4096 x 4096 bf16 matrices, on all cores or a GPU: the best of several seconds."""

import torch

from peers.job import now

_SIZE = 4096
_SECONDS = 4.0
_LEAST = 4
_AT_ONCE = 20  # On a GPU, where a wait for its end takes as long as a part of a product.


def rate(device: torch.device) -> float:
    """Return the FLOP/s of the fastest products."""
    left, right = (torch.randn(_SIZE, _SIZE, device=device).bfloat16() for _ in range(2))
    products = _AT_ONCE if device.type == "cuda" else 1
    seconds: list[float] = []
    while len(seconds) < _LEAST or sum(seconds) < _SECONDS:
        began = now(device)
        for _ in range(products):
            left @ right
        seconds.append(now(device) - began)
    return 2 * _SIZE**3 * products / min(seconds)
