"""Sentences of a batch without padding: training on a GPU computes nothing else."""

from typing import NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
    """B sentences one after the other, without padding.

    Attributes:
        tokens: (n,) token ids of all sentences.
        positions: (n,) position of each token in its sentence.
        starts: (B+1,) int32, first token of each sentence, and n; a sentence may be empty.
        longest: at least the tokens of the longest sentence.
    """

    tokens: Tensor
    positions: Tensor
    starts: Tensor
    longest: int

    def to(self, device: torch.device) -> "Packed":
        """Return the sentences on a device; a copy from pinned memory is asynchronous."""
        tokens, positions, starts = (tensor.to(device, non_blocking=True) for tensor in self[:3])
        return Packed(tokens, positions, starts, self.longest)

    def pin_memory(self) -> "Packed":
        """Return the sentences in pinned memory, from which a GPU copies asynchronously."""
        tokens, positions, starts = (tensor.pin_memory() for tensor in self[:3])
        return Packed(tokens, positions, starts, self.longest)

    def twice(self) -> "Packed":
        """Return all sentences and then all of them again."""
        again = self.starts[1:] + len(self.tokens)
        return Packed(self.tokens.repeat(2), self.positions.repeat(2), torch.cat((self.starts, again)), self.longest)
