"""Pairs of token ids as padded tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.corpus.binary import Pairs, TokenIds
from transformer_core.corpus.subword import BOS, PAD


class Batch(NamedTuple):
    """A micro-batch of B pairs with n real target tokens, padded on the right.

    Attributes:
        source: (B, S) token ids, end tokens included.
        source_mask: (B, S), True at real tokens.
        shifted: (B, T) target ids moved one to the right behind the begin token: what the decoder reads.
        places: (n,) of the real target tokens among the B*T positions; numbers, because a device must be waited for to count a mask.
        truth: (n,) target ids at these places, end tokens included: what the decoder must predict.
    """

    source: Tensor
    source_mask: Tensor
    shifted: Tensor
    places: Tensor
    truth: Tensor

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device; from pinned memory without waiting for it."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))

    def pinned(self) -> "Batch":
        """The batch in memory that a GPU copies from by itself."""
        return Batch(*(tensor.pin_memory() for tensor in self))


def make_batch(pairs: Pairs) -> Batch:
    """The pairs as one batch, in the CPU's memory."""
    source, target = padded(pairs.sources), padded(pairs.targets)
    shifted = np.full_like(target, BOS)
    shifted[:, 1:] = target[:, :-1]
    places = np.flatnonzero(target != PAD)
    return Batch(*map(torch.from_numpy, (source, source != PAD, shifted, places, target.ravel()[places])))


def padded(sentences: Sequence[TokenIds]) -> NDArray[np.int64]:
    """Sentences as rows, padded to the longest: (B, T)."""
    lengths = np.array([*map(len, sentences)])
    rows = np.full((len(sentences), int(lengths.max())), PAD, dtype=np.int64)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = np.concatenate(sentences)
    return rows
