"""Sentences of a batch without padding, and attention within them: training on a GPU computes nothing else."""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from transformer_core.models.attention import scaled_dot_product_attention
from transformer_core.models.embeddings import Dropout

AnyBatch = TypeVar("AnyBatch", bound=tuple[object, ...])


def on_device(batch: AnyBatch, device: torch.device) -> AnyBatch:
    """Return a batch with its tensors on a device; a copy from pinned memory is asynchronous."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)


class Packed(NamedTuple):
    """B sentences one after the other, without padding."""

    tokens: Tensor  # (n,) token ids of all sentences.
    positions: Tensor  # (n,) position of each token in its sentence.
    starts: Tensor  # (B+1,) int32, first token of each sentence, and n; a sentence may be empty.
    longest: int  # At least the tokens of the longest sentence.


class PackedBatch(NamedTuple):
    """A micro-batch without padding."""

    source: Packed  # The source sentences, end tokens included.
    shifted: Packed  # The decoder's input: each target sentence moved one to the right behind the begin token.
    targets: Tensor  # (n,) target ids, end tokens included: the tokens to predict; -1 for filling.

    @property
    def shape(self) -> tuple[int, ...]:
        """Everything that the kernels of a batch depend on."""
        return tuple(number for side in (self.source, self.shifted) for number in (len(side.tokens), len(side.starts), side.longest))

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the batch."""
        return [*self.source[:3], *self.shifted[:3], self.targets]


class Segments(NamedTuple):
    """What the packed sentences of queries see: the packed sentence of keys with the same number."""

    queries: Packed
    keys: Packed
    causal: bool = False  # A query sees no later position.
    short: bool = False  # The kernel for short sentences is used.

    def mask(self) -> Tensor:
        """Return the same as a mask, (n of the queries, n of the keys)."""
        number = [torch.bucketize(torch.arange(len(side.tokens)), side.starts, right=True) for side in (self.queries, self.keys)]
        same = number[0][:, None] == number[1]
        return same & (self.queries.positions[:, None] >= self.keys.positions) if self.causal else same


def packed_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
    """Return the weighted sum of values within packed sentences, without a score between two of them on a GPU.

    Shapes are those of `scaled_dot_product_attention` with B = 1. On a GPU the type is bf16 or fp16.
    """
    if query.device.type == "cpu":
        return scaled_dot_product_attention(query, key, value, segments.mask(), Dropout(0.0))
    q, k, v = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    if segments.short:
        from transformer_core.models.ops.short_attention import short_attention  # It needs Triton, which a CPU's torch has not.

        attended = short_attention(q, k, v, segments.queries, segments.keys, segments.causal)
    else:
        from torch.nn.attention.varlen import varlen_attn  # It imports torch's compiler, which takes more than a second.

        starts, window = (segments.queries.starts, segments.keys.starts), (-1, 0) if segments.causal else (-1, -1)
        longest = segments.queries.longest, segments.keys.longest
        attended = varlen_attn(q, k, v, *starts, *longest, window_size=window)  # type: ignore[assignment]  # Without the optional tuple.
    return attended.transpose(0, 1)[None]
