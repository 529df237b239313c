"""CUDA graphs of micro-batches: launching the kernels of a forward and backward pass one by one takes longer than running them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_core.training.loader import PackedBatch


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    batch: PackedBatch
    divisor: Tensor


class GradientGraphs:
    """A graph for each shape of a micro-batch, captured when the shape comes for the first time. All use the same memory in turn.

    Args:
        add_gradients: adds the gradients of a micro-batch, divided by a scalar tensor, to `sums`; it waits for nothing.
        sums: everything that it changes.
    """

    def __init__(self, add_gradients: Callable[[PackedBatch, Tensor], None], sums: Tensor) -> None:
        self._add_gradients = add_gradients
        self._sums = sums
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, batch: PackedBatch, divisor: int, seed: Callable[[], None]) -> None:
        """Add the gradients of a micro-batch; `seed` seeds its dropout."""
        if batch.shape not in self._graphs:
            self._graphs[batch.shape] = self._captured(batch.to(self._sums.device))
        known = self._graphs[batch.shape]
        for own, given in zip(known.batch.tensors, batch.tensors, strict=True):
            own.copy_(given, non_blocking=True)
        known.divisor.fill_(divisor)
        seed()
        known.graph.replay()

    def _captured(self, batch: PackedBatch) -> _Graph:
        """Capture a graph. Its kernels run once before, on a stream of their own, since what they need may not be made in a capture."""
        divisor, before = torch.ones((), device=self._sums.device), self._sums.clone()
        aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._add_gradients(batch, divisor)
        torch.cuda.current_stream().wait_stream(aside)
        # Of this thread alone: the loader allocates pinned memory meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._add_gradients(batch, divisor)
        self._sums.copy_(before)
        return _Graph(graph, batch, divisor)
