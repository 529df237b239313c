"""Captured steps: recorded and replayed on a CPU, each operation again on the same tensors; and decoding on a GPU."""

import itertools
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.decoding.parity import WordsOnly, differences, made_up_pairs, padded
from tests.models.on_disk import SMALL, VOCAB
from transformer_core.corpus.tokens.subword import EOS, PAD
from transformer_core.decoding import beam as beam_module
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.models.architectures import build
from transformer_core.models.ops import decoding_graphs as graphs
from transformer_core.models.ops.choice import prepare_for_decoding
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SOURCES = [source for source, _ in made_up_pairs(60, seed=3_000)]


class Recording(TorchDispatchMode):
    """The operations within the block, and a replay of them that writes each result where it was recorded."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Sequence[Any], dict[str, Any], list[Tensor]]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        self._calls.append((operation, args, kwargs or {}, _tensors(result)))
        return result

    def replay(self) -> None:
        """Repeat the operations."""
        for operation, args, kwargs, results in self._calls:
            for recorded, new in zip(results, _tensors(operation(*args, **kwargs)), strict=True):
                if new.data_ptr() != recorded.data_ptr():  # Neither in place nor a view.
                    recorded.copy_(new)


class RecordedTransformer(graphs.GraphedTransformer):
    """Captures as on a GPU, where a capture runs nothing: the step runs while it is recorded, and its first replay does nothing."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.captures = self.replays = 0

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        recording = Recording()
        with recording:
            run()
        started = False

        def replay() -> None:
            nonlocal started
            if started:
                self.replays += 1
                recording.replay()
            started = True

        return replay


@pytest.fixture(autouse=True)
def _sentences_are_removed_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_module, "_SHARE_DONE", 1 / 2)


@pytest.mark.parametrize(
    ("search", "positions"),
    [
        (Search(1, 0.6, "power", max_extra=20), 5),
        (Search(4, 0.6, "power", max_extra=20), 32),
        (Search(4, 0.6, "power", max_extra=20, patience=1.0), 5),
        (Search(4, max_extra=2), 32),
        (Search(9, nbest=2, max_extra=6), 5),
    ],
)
def test_captured_steps_are_those_of_the_model(search: Search, positions: int, model: WordsOnly, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sentences that are removed, slots and a trace that run out, outputs of the greatest length, and batches after one another."""
    monkeypatch.setattr(beam_module, "_STEPS_AT_FIRST", 8)
    monkeypatch.setattr(graphs, "_POSITIONS", positions)
    monkeypatch.setattr(graphs, "_MORE", -1.0)
    assert captured(model, search, SOURCES[:20], SOURCES[20:]).captures > 3


def test_a_beam_as_wide_as_the_vocabulary_has_captured_steps() -> None:
    """Its first step leaves one hypothesis fewer than there are subwords, and only the second fills the beam."""
    torch.manual_seed(0)
    model = Transformer(TransformerSize(layers=1, d_model=8, d_ff=8, heads=1, d_k=8, d_v=8, dropout=0.0), 17).double().eval()
    captured(model, Search(17, max_extra=8), [[5, 9, EOS], [7, EOS], [16, 4, 4, EOS]])


def test_captured_steps_begin_with_a_prefix(model: WordsOnly) -> None:
    prefix = padded([source[: 1 + number % 4] for number, source in enumerate(SOURCES)])
    captured(model, Search(4, max_extra=20), SOURCES, prefix=prefix)


def captured(model: Transformer, search: Search, *batches: list[list[int]], prefix: Tensor | None = None) -> RecordedTransformer:
    """The model with captured steps, after it has found the model's own outputs but for the rounding of attention, which has more slots."""
    recorded = RecordedTransformer(model)
    for tokens in map(padded, batches):
        expected, found = (beam_search(either, tokens, tokens != PAD, search, prefix) for either in (model, recorded))
        assert [[output.tokens for output in outputs] for outputs in found] == [[other.tokens for other in outputs] for outputs in expected]
        for output, other in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
            assert (output.log_probability, output.score) == pytest.approx((other.log_probability, other.score), abs=1e-5)
    assert recorded.replays
    return recorded


def _tensors(result: Any) -> list[Tensor]:
    return [part for part in (result if isinstance(result, tuple | list) else (result,)) if isinstance(part, Tensor)]


@pytest.mark.gpu
@pytest.mark.parametrize("beam", [1, 4])
def test_a_gpu_finds_the_outputs_of_a_cpu_and_nearly_all_of_them_in_bf16(beam: int, model: WordsOnly) -> None:
    search, tokens = Search(beam, 0.6, "power", max_extra=6), padded(SOURCES)
    on_cpu = beam_search(model, tokens, tokens != PAD, search)
    there, tokens = deepcopy(model).cuda(), tokens.cuda()
    found = differences(model, SOURCES, beam_search(there, tokens, tokens != PAD, search), on_cpu, search)
    assert {*found} <= {"tie"}
    assert len(found) <= 2
    prepare_for_decoding(there.to(torch.bfloat16))
    in_bf16 = beam_search(there, tokens, tokens != PAD, search)
    same = sum(ours[0].tokens == theirs[0].tokens for ours, theirs in zip(in_bf16, on_cpu, strict=True))
    assert same >= 0.85 * len(SOURCES)  # A model of this size has many ties.


@pytest.mark.gpu
@pytest.mark.parametrize("positions", [5, 32])
@pytest.mark.parametrize(("beam", "patience"), [(1, None), (4, None), (4, 1.0), (9, None)])
def test_captured_steps_on_a_gpu_are_those_of_the_model(
    beam: int, patience: float | None, positions: int, model: WordsOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sentences that are removed, slots that run out, and several batches after one another."""
    monkeypatch.setattr(graphs, "_POSITIONS", positions)
    monkeypatch.setattr(graphs, "_MORE", -1.0)
    monkeypatch.setattr(beam_module, "_FEW_ON_GPU", 16)
    there, search = deepcopy(model).cuda(), Search(beam, 0.6, "power", max_extra=20, patience=patience)
    captured = graphs.graphed(there)
    assert isinstance(captured, graphs.GraphedTransformer)
    for sources in (SOURCES[:40], SOURCES[40:], SOURCES):
        tokens = padded(sources).cuda()
        expected, found = (beam_search(either, tokens, tokens != PAD, search) for either in (there, captured))
        assert [outputs[0].tokens for outputs in found] == [outputs[0].tokens for outputs in expected]
    assert captured.newest is not None


@pytest.mark.gpu
def test_a_step_waits_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch raises where an operation would wait; only the count of finished sentences may, once in some steps, and the first step."""
    calls = 0

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            torch.cuda.set_sync_debug_mode("error" if calls > 2 else "default")
            try:
                return call(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return watching

    torch.manual_seed(1)
    drawn = build(SMALL, VOCAB).eval().cuda()
    monkeypatch.setattr(drawn, "step", watched(drawn.step))
    monkeypatch.setattr(beam_module._BeamSearch, "extend", watched(beam_module._BeamSearch.extend))
    tokens = torch.randint(4, VOCAB, (5, 7), device="cuda")
    beam_search(drawn, tokens, tokens != PAD, Search(4, 0.6, "power", max_extra=20))
    assert calls > 10
