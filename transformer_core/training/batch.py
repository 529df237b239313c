"""Pairs of token ids as padded tensors."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_core.corpus.binary import BinarizedSplit, Sentences
from transformer_core.corpus.subword import BOS, PAD


class Batch(NamedTuple):
    """A micro-batch of B pairs, padded on the right.

    Attributes:
        source: (B, S) token ids, end tokens included.
        source_mask: (B, S), True at real tokens.
        shifted: (B, T) target ids moved one to the right behind the begin token: what the decoder reads.
        target: (B, T) target ids, end tokens included: what it must predict.
        target_mask: (B, T), True at real tokens.
    """

    source: Tensor
    source_mask: Tensor
    shifted: Tensor
    target: Tensor
    target_mask: Tensor


def make_batch(split: BinarizedSplit, pairs: NDArray[np.int64], device: torch.device) -> Batch:
    """The pairs of these numbers as one batch on the device."""
    source = torch.from_numpy(padded(split.source, pairs)).to(device)
    target = torch.from_numpy(padded(split.target, pairs)).to(device)
    shifted = torch.cat((target.new_full((len(target), 1), BOS), target[:, :-1]), dim=1)
    return Batch(source, source != PAD, shifted, target, target != PAD)


def padded(sentences: Sentences, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sentences of these numbers as rows, padded to the longest: (B, T)."""
    lengths = sentences.lengths[numbers]
    rows = np.full((len(numbers), int(lengths.max())), PAD, dtype=np.int64)
    for row, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
        rows[row, :length] = sentences[int(number)]
    return rows
