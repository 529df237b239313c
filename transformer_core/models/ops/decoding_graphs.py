"""CUDA graphs of decoding: launching the kernels of a step one by one takes longer than running them."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from transformer_core.models.transformer import Transformer, TransformerState
from transformer_core.models.translation import as_autocast

_LEAST_FREE = 1 / 16  # Share of the memory: in a capture no cached memory can be freed.
# Number of steps for which memory is reserved at a time; each time a graph is captured anew. Outputs are about as long as their sources, so
# the first reservation is the length of the longest source plus this share, if that is more steps.
_POSITIONS, _MORE = 32, 1 / 8
_ROOM = 8  # Capacities are multiples of this.
_CAPTURING = Lock()  # Threads may share a translator; and freeing cached memory, on all GPUs, ends another thread's capture.


class GraphedTransformer:
    """A Transformer on a GPU, for beam search; its results are those of the model."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        with torch.cuda.device(model.device):
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()
        self.newest: torch.cuda.CUDAGraph | None = None  # As long as a graph uses the pool, its memory is kept for the next one.

    def start(self, source: Tensor, source_mask: Tensor) -> TransformerState:
        """Encode (B, S) sources, see `TranslationModel.start`."""
        return self.model.start(source, source_mask)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture the kernels that `run` launches, without running them; return their replay."""
        graph = torch.cuda.CUDAGraph()
        with _CAPTURING, torch.cuda.device(self.model.device):
            free, total = torch.cuda.mem_get_info()
            if free < total * _LEAST_FREE:
                torch.cuda.empty_cache()
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    run()
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(self._stream)
        self.newest = graph
        return graph.replay


class CapturedSteps:
    """The steps of a search (decoding/beam.py).

    At the earliest from the fourth on they are replayed, as long as a step does the same to the same tensors.
    """

    def __init__(self, owner: GraphedTransformer, search: Any, state: Any) -> None:
        self._owner = owner
        self._search = search
        self._state = state
        # Where a step is, in tensors that each step advances: its slots (K,) and target position (1,); and encodings of positions (P, D).
        self._cursor: tuple[Tensor, Tensor, Tensor] | None = None
        self._replay: Callable[[], None] | None = None
        self._valid_for: tuple[object, ...] = ()

    def __call__(self) -> None:
        """Make a step."""
        search, state = self._search, self._state
        hypotheses = search.live.shape[1]
        # The first two steps have other numbers of hypotheses, and with a beam as wide as the vocabulary the third one too.
        if state.position < 2 or state.seen.shape[1] != hypotheses:
            search.step(self._owner.model, state)
            return
        if self._cursor is None or state.used + hypotheses > state.seen.shape[2]:
            longest = round(state.mask.shape[-1] * (1 + _MORE)) - state.position
            self._cursor = _reserve(self._owner.model, state, max(_POSITIONS, longest))
        now = (self._cursor, search.max_length, search.trace, *search.forcing)
        same = len(now) == len(self._valid_for) and all(a is b for a, b in zip(now, self._valid_for, strict=True))
        if not same:  # The first step with these tensors loads kernels, which must not happen in a capture.
            self._replay, self._valid_for = None, now
            search.step(self, state)
            return
        if self._replay is None:
            self._replay = self._captured()
        else:
            search.length, state.used, state.position = search.length + 1, state.used + hypotheses, state.position + 1
        self._replay()

    def step(self, tokens: Tensor, state: TransformerState) -> Tensor:
        """Decode as `TranslationModel.step`, at the cursor: no tensor is moved or made anew."""
        assert self._cursor is not None
        model, hypotheses = self._owner.model, len(tokens) // len(state.mask)
        slots, place, encodings = self._cursor
        slots.add_(hypotheses)
        place.add_(1)
        state.used, state.position = state.used + hypotheses, state.position + 1
        state.seen[:, :, slots] = torch.eye(hypotheses, dtype=torch.bool, device=tokens.device)
        embedded = (model.target_embedding or model.embedding)(tokens[:, None]) + encodings[place]
        return model.project(model.decode_embedded(as_autocast(embedded), state, slots))

    def _captured(self) -> Callable[[], None]:
        """Capture a step that leaves its results in the tensors that it read."""
        search, state = self._search, self._state
        places: list[tuple[Any, str]] = [*((search, name) for name in search.CHANGING), (state, "seen")]
        before = [getattr(*place) for place in places]

        def run() -> None:
            search.step(self, state)
            for place, old in zip(places, before, strict=True):
                for tensor, new in zip(tree_leaves(old), tree_leaves(getattr(*place)), strict=True):
                    tensor.copy_(new)
                setattr(*place, old)

        return self._owner.capture(run)


def _reserve(model: Transformer, state: TransformerState, positions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Reserve slots for so many more positions; until then no step moves a tensor."""
    hypotheses, device = state.seen.shape[1], state.seen.device
    capacity = -(-(state.used + positions * hypotheses) // _ROOM) * _ROOM
    state.enlarge(capacity - state.seen.shape[2])
    slots = torch.arange(state.used - hypotheses, state.used, device=device)
    count = state.position + (capacity - state.used) // hypotheses
    none = model.output_weight.new_zeros(count, model.d_model)
    encodings = none if model.target_positions is None else model.target_positions(0, count)  # As many as the model has learned.
    return slots, torch.full((1,), state.position - 1, device=device), encodings


def graphed(model: Any) -> Any:
    """Return the model with captured steps, or itself where none can be captured: a step may depend on its number only through tensors."""
    return GraphedTransformer(model) if type(model) is Transformer and model.device.type == "cuda" else model
