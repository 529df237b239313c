"""Batches made ahead of the training, in a thread."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from transformer_core.corpus.batches import BatchPlan, Cursor, Update
from transformer_core.corpus.binary import BinarizedSplit
from transformer_core.corpus.bpe_dropout import BpeDropout
from transformer_core.training.batch import Batch, make_batch
from transformer_core.training.devices import Devices

_AHEAD = 4


class Share(NamedTuple):
    """What one rank does of an update: the update, the place after it, and its micro-batches by their position in the update."""

    update: Update
    after: Cursor
    microbatches: dict[int, Batch]


def shares(
    plan: BatchPlan, split: BinarizedSplit, devices: Devices, cursor: Cursor, bpe_dropout: BpeDropout | None = None
) -> Generator[Share]:
    """This rank's shares of the updates from a place in the plan on, without end; a few are made ahead, in pinned memory for a GPU.

    With `bpe_dropout` every rank segments the whole update, whose tokens all must count alike, and makes tensors of its own part.
    """
    updates = plan.updates_from(cursor)
    mine = slice(devices.rank, None, devices.world_size)

    def make() -> Share:
        update, after = next(updates)
        if bpe_dropout is None:
            pairs = list(map(split.pairs, update.microbatches[mine]))
        else:
            update, segmented = bpe_dropout.segmented(update, Cursor(after.epoch, after.done - 1))
            pairs = segmented[mine]
        positions = range(len(update.microbatches))[mine]
        batches = dict(zip(positions, map(make_batch, pairs), strict=True))
        if devices.device.type == "cuda":
            batches = {position: batch.pinned() for position, batch in batches.items()}
        return Share(update, after, batches)

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
    try:
        coming = deque(thread.submit(make) for _ in range(_AHEAD))
        while True:
            coming.append(thread.submit(make))
            yield coming.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
