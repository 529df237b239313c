"""A rank's micro-batches as tensors, padded or packed, prepared ahead in a thread."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from transformer_core.corpus.tokens.batches import Cursor, GlobalBatch, Indices, Lengths
from transformer_core.corpus.tokens.binary import BinarizedSplit, Pairs
from transformer_core.corpus.tokens.bpe_dropout import BpeDropout
from transformer_core.corpus.tokens.subword import BOS, PAD, padded
from transformer_core.models.ops.packed import Packed, PackedBatch
from transformer_core.models.translation import TranslationModel
from transformer_core.training.devices import Rank

_AHEAD = 4  # Updates.
_BLOCK = 128  # Positions.


class Batch(NamedTuple):
    """A micro-batch of B pairs with n real target tokens, padded on the right."""

    source: Tensor  # (B, S) token ids, end tokens included.
    source_mask: Tensor  # (B, S), True at real tokens.
    shifted: Tensor  # (B, T) target ids moved one to the right behind the begin token: the decoder's input.
    # (n,) indices of the real target tokens among all B*T; no mask, since counting a mask would wait for the device.
    target_positions: Tensor
    targets: Tensor  # (n,) target ids at these positions, end tokens included: the tokens to predict.

    def decoded(self, model: TranslationModel) -> Tensor:
        """Return the model's output at the real target positions, (n, D)."""
        return model(self.source, self.source_mask, self.shifted).flatten(0, 1).index_select(0, self.target_positions)


MakeBatch = Callable[[Pairs], Batch | PackedBatch]


class RankBatch(NamedTuple):
    """A rank's part of an update."""

    update: GlobalBatch
    after: Cursor  # After the update.
    microbatches: dict[int, Batch | PackedBatch]  # Of the rank, by their position in the update.


def make_batch(pairs: Pairs) -> Batch:
    """Return the pairs as one batch on the CPU."""
    source, target = padded(pairs.sources), padded(pairs.targets)
    shifted = np.full_like(target, BOS)
    shifted[:, 1:] = target[:, :-1]
    positions = np.flatnonzero(target != PAD)
    return Batch(*map(torch.from_numpy, (source, source != PAD, shifted, positions, target.ravel()[positions])))


def make_twice(pairs: Pairs, make: MakeBatch) -> Batch | PackedBatch:
    """Return a batch of all pairs and then of all pairs again, with the targets of the first, for R-Drop's two passes."""
    batch = make(Pairs(np.tile(pairs.numbers, 2), [*pairs.sources] * 2, [*pairs.targets] * 2))
    return batch._replace(targets=batch.targets[: len(batch.targets) // 2])


class PackedShape(NamedTuple):
    """Everything that the kernels of a packed batch depend on: tokens of both sides, number of sentences, and longest sentence."""

    source_tokens: int
    target_tokens: int
    sentences: int
    longest: int


def packed_shape(source_lengths: Lengths, target_lengths: Lengths, budget: int) -> PackedShape:
    """Return the shape to which a micro-batch is filled, so that a training has few shapes; these are captured in CUDA graphs.

    Each side is filled to the next of 4, 5, 6, 7 and 8 eighths of the budget: with lengths as in WMT, filling is 4 to 5% of all tokens. The
    number of sentences follows from the budget and the longest sentence, unless most are much shorter: empty ones cost little. Lengths are
    (pairs,) numbers of tokens, eos included; the budget is `train.tokens_per_microbatch`.
    """
    longest = int(max(source_lengths.max(), target_lengths.max()))
    tokens = [int(side.sum()) for side in (source_lengths, target_lengths)]
    source, target = (_multiple(-(-max(4, -(-8 * number // budget)) * budget // 8), 64) for number in tokens)
    rows = max(len(source_lengths) + _fillings((source, target), tokens, longest), 2 * budget // _power_of_two(longest))
    return PackedShape(source, target, _power_of_two(rows), _rounded(longest))


def microbatch_of_each_shape(epoch: Sequence[GlobalBatch], split: BinarizedSplit, budget: int) -> list[Indices]:
    """Return the pair numbers of a micro-batch for each shape of an epoch, the largest first."""
    found: dict[PackedShape, Indices] = {}
    for update in epoch:
        for pairs in update.microbatches:
            found.setdefault(packed_shape(split.source.lengths[pairs], split.target.lengths[pairs], budget), pairs)
    return [found[shape] for shape in sorted(found, reverse=True)]


def make_packed_batch(pairs: Pairs, budget: int | None = None) -> PackedBatch:
    """Return the pairs as one batch without padding on the CPU.

    With a budget, it is filled to its `packed_shape` by sentences of PAD, no longer than the longest of either side, whose targets are -1.
    """
    sides = (pairs.sources, pairs.targets)
    lengths = [np.array([len(sentence) for sentence in side]) for side in sides]
    longest, tokens = int(max(map(np.max, lengths))), [int(side.sum()) for side in lengths]
    plain = PackedShape(tokens[0], tokens[1], len(pairs), _rounded(longest))
    shape = plain if budget is None else packed_shape(lengths[0], lengths[1], budget)
    fillings = _fillings(shape[:2], tokens, longest)
    packed = []
    for sentences, own, number, whole in zip(sides, lengths, tokens, shape[:2], strict=True):
        filling = np.full(whole - number, PAD, np.int64)
        # Evenly, since a sentence of the target should have a source to attend to.
        evenly = np.diff(np.linspace(0, len(filling), fillings + 1, dtype=np.int64))
        filled = np.concatenate((own, evenly, np.zeros(shape.sentences - len(own) - fillings, np.int64)))
        starts = np.concatenate(([0], filled.cumsum()))
        arrays = np.concatenate((*sentences, filling)), np.arange(whole) - starts[:-1].repeat(filled), starts.astype(np.int32)
        ids, positions, firsts = map(torch.from_numpy, arrays)
        packed.append(Packed(ids, positions, firsts, shape.longest))
    source, target = packed
    shifted = target.tokens.roll(1)
    shifted[target.starts[: len(pairs)].long()] = BOS
    targets = target.tokens.clone()
    targets[tokens[1] :] = -1
    return PackedBatch(source, target._replace(tokens=shifted), targets)


def _fillings(filled: Sequence[int], tokens: Sequence[int], longest: int) -> int:
    """Return the number of sentences, at most so long, that fill each side of a batch up."""
    return max(-(-(more - number) // longest) for more, number in zip(filled, tokens, strict=True))


def _rounded(longest: int) -> int:
    """Return a length that kernels are made for: a power of 2 from 16 up to `_BLOCK`, then multiples of that."""
    return max(16, _power_of_two(longest)) if longest <= _BLOCK else _multiple(longest, _BLOCK)


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def shares(
    updates: Iterator[tuple[GlobalBatch, Cursor]], split: BinarizedSplit, rank: Rank, make_batch: MakeBatch, bpe_dropout: BpeDropout | None
) -> Generator[RankBatch]:
    """Yield this rank's shares of updates, each given with the cursor after it; a few are prepared ahead, in pinned memory for a GPU.

    With `bpe_dropout` every rank segments the whole update, since all ranks need its number of tokens, and makes tensors of its own part.
    """
    mine = slice(rank.index, None, rank.world_size)

    def make() -> RankBatch:
        update, after = next(updates)
        if bpe_dropout is None:
            pairs = list(map(split.pairs, update.microbatches[mine]))
        else:
            update, segmented = bpe_dropout.segmented(update, Cursor(after.epoch, after.done - 1))
            pairs = segmented[mine]
        batches = dict(zip(range(len(update.microbatches))[mine], map(make_batch, pairs), strict=True))
        if rank.device.type == "cuda":
            batches = tree_map_only(Tensor, Tensor.pin_memory, batches)  # From which it copies asynchronously.
        return RankBatch(update, after, batches)

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
    try:
        coming = deque(thread.submit(make) for _ in range(_AHEAD))
        while True:
            coming.append(thread.submit(make))
            yield coming.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
