"""CUDA graphs of decoding steps: launching the kernels of a step one by one takes longer than running them."""

from contextlib import AbstractContextManager
from threading import Lock

import torch
from torch import Tensor

from transformer_core.decoding.hypotheses import StepModel
from transformer_core.errors import configuration_error
from transformer_core.models.transformer import Transformer, TransformerState

_LEAST_FREE = 1 / 16  # Share of the memory: in a capture no cached memory can be freed.
_POSITIONS = 32  # Number of steps for which memory is reserved at a time; each time a graph is captured anew.


class GraphedTransformer:
    """A Transformer on a GPU, for beam search and sampling; its results are those of the model."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.device = model.device
        with torch.cuda.device(model.device):
            self.stream = torch.cuda.Stream()
            self.pool = torch.cuda.graph_pool_handle()
        self.lock = Lock()  # Of captures: threads may share a translator.
        self.newest: torch.cuda.CUDAGraph | None = None  # As long as a graph uses the pool, its memory is kept for the next one.

    def start(self, source: Tensor, source_mask: Tensor) -> "GraphedState":
        """Encode (B, S) sources, see `TranslationModel.start`."""
        return GraphedState(self, self.model.start(source, source_mask))

    def step(self, tokens: Tensor, state: "GraphedState") -> Tensor:
        """Decode (B*K,) newest tokens to (B*K, V) logits, which the next step overwrites."""
        return state.step(tokens)

    def attention_to_source(self) -> AbstractContextManager[list[Tensor]]:
        """Raise `UserError` (78): what a step records does not leave a graph."""
        raise configuration_error("the coverage penalty: there is none for captured steps", "Set it to 0.")


class GraphedState:
    """State of decoding; the steps after the second are replayed, as long as no sentence is removed and slots are left."""

    def __init__(self, owner: GraphedTransformer, state: TransformerState) -> None:
        self._owner = owner
        self._state = state
        self._chosen: Tensor | None = None  # A selection that the next step makes.
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits = self._rows = self._tokens = torch.empty(0)

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """Keep, repeat and reorder hypotheses, see `DecoderState`."""
        state, before = self._state, self._state.seen.shape[1]
        if sentences is None and state.cursor is not None and len(hypotheses) == len(state.mask) * before:
            self._chosen = hypotheses
            return
        state.select(hypotheses, sentences)
        self._graph = self._chosen = None
        if state.seen.shape[1] != before:
            state.cursor = None

    def step(self, tokens: Tensor) -> Tensor:
        """Decode the newest tokens."""
        state, hypotheses = self._state, len(tokens) // len(self._state.mask)
        if state.position == 0:
            return self._owner.model.step(tokens, state)
        if state.cursor is None or state.used + hypotheses > state.seen.shape[2]:
            if self._chosen is not None:
                state.select(self._chosen, None)
            state.fix(_POSITIONS, self._owner.model.encodings)
            self._graph, self._chosen = None, None
        if self._chosen is None:  # The first step with these tensors; it also loads kernels, which must not happen in a capture.
            self._graph = None
            return self._owner.model.step(tokens, state)
        if self._graph is None:
            self._capture(tokens)
        else:
            self._tokens.copy_(tokens)
            self._rows.copy_(self._chosen)
            state.used, state.position = state.used + hypotheses, state.position + 1
        assert self._graph is not None
        self._graph.replay()
        return self._logits

    def _capture(self, tokens: Tensor) -> None:
        """Capture a selection and a step after it, which advances the numbers of the state, but not its tensors."""
        assert self._chosen is not None
        owner, state = self._owner, self._state
        self._tokens, self._rows, graph = tokens.clone(), self._chosen.clone(), torch.cuda.CUDAGraph()
        with owner.lock, torch.cuda.device(owner.device):
            free, total = torch.cuda.mem_get_info()
            if free < total * _LEAST_FREE:
                torch.cuda.empty_cache()
            owner.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(owner.stream):
                graph.capture_begin(pool=owner.pool, capture_error_mode="thread_local")
                try:
                    state.seen.copy_(state.seen.flatten(0, 1).index_select(0, self._rows).view_as(state.seen))
                    self._logits = owner.model.step(self._tokens, state)
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(owner.stream)
        self._graph = owner.newest = graph


def graphed(model: StepModel) -> StepModel:
    """Return the model with captured steps, or itself where none can be captured: a step may depend on its number only through tensors."""
    if isinstance(model, Transformer) and model.device.type == "cuda" and model.size.neighbourhood is None:
        return GraphedTransformer(model)
    return model
