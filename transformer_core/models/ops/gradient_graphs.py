"""CUDA graphs of micro-batches: launching the kernels of a forward and backward pass one by one takes longer than running them."""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_core.models.ops.packed import PackedBatch, on_device

AddGradients = Callable[[PackedBatch, Tensor], None]
_Captured = tuple[torch.cuda.CUDAGraph, PackedBatch, Tensor]  # A graph, and the micro-batch and the divisor that it reads.
_MOST_GRAPHS = 256  # They take memory; a shape that comes so late is rare, and its kernels are launched one by one.


class GradientGraphs:
    """A graph for each shape of a micro-batch, captured when the shape comes for the first time. All use the same memory in turn.

    `sums` is everything that the passes change.
    """

    def __init__(self, sums: Tensor) -> None:
        self._sums = sums
        self._graphs: dict[tuple[int, ...], _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()
        # One for all warm-ups and captures: cuBLAS keeps a workspace for each stream that it has worked on.
        self._stream = torch.cuda.Stream()

    def run(self, batch: PackedBatch, divisor: int, seed: Callable[[], None], add_gradients: AddGradients) -> None:
        """Add the gradients of a micro-batch, on any device, divided by `divisor`; `seed` seeds its dropout.

        `add_gradients` adds the gradients of a micro-batch, divided by a scalar tensor, to `sums`; it waits for nothing.
        """
        if batch.shape not in self._graphs:
            if len(self._graphs) == _MOST_GRAPHS:
                seed()
                add_gradients(on_device(batch, self._sums.device), self._sums.new_tensor(divisor))
                return
            self._graphs[batch.shape] = self._captured(on_device(batch, self._sums.device), add_gradients)
        graph, read, of_graph = self._graphs[batch.shape]
        for own, given in zip(read.tensors, batch.tensors, strict=True):
            own.copy_(given, non_blocking=True)
        of_graph.fill_(divisor)
        seed()
        graph.replay()

    def _captured(self, batch: PackedBatch, add_gradients: AddGradients) -> _Captured:
        """Capture a graph. Its kernels run once before, on the same stream, since what they need may not be made in a capture."""
        divisor, before = torch.ones((), device=self._sums.device), self._sums.clone()
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            add_gradients(batch, divisor)
        torch.cuda.current_stream().wait_stream(self._stream)
        # Of this thread alone: the loader allocates pinned memory meanwhile.
        with torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
            add_gradients(batch, divisor)
        self._sums.copy_(before)
        return graph, batch, divisor
