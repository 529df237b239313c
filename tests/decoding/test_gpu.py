"""Decoding on a GPU: the outputs of a CPU, by steps that do not wait for the GPU."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch

from tests.decoding.parity import WordsOnly, differences, made_up_pairs, padded
from tests.models.on_disk import SMALL, VOCAB
from transformer_core.corpus.tokens.subword import PAD
from transformer_core.decoding import beam as beam_module
from transformer_core.decoding import hypotheses
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.models.architectures import build
from transformer_core.models.ops import decoding_graphs as graphs
from transformer_core.models.ops.choice import prepare_for_decoding

pytestmark = pytest.mark.gpu
SOURCES = [source for source, _ in made_up_pairs(60, seed=3_000)]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_gpu_finds_the_outputs_of_a_cpu(beam: int, model: WordsOnly) -> None:
    search = Search(beam, 0.6, "power", max_extra=6)
    tokens = padded(SOURCES)
    on_cpu = beam_search(model, tokens, tokens != PAD, search)
    there, tokens = deepcopy(model).cuda(), tokens.cuda()
    on_gpu = beam_search(there, tokens, tokens != PAD, search)
    found = differences(model, SOURCES, on_gpu, on_cpu, search)
    assert {*found} <= {"tie"}
    assert len(found) <= 2


@pytest.mark.parametrize("beam", [1, 4])
def test_in_bf16_nearly_all_outputs_are_those_of_a_cpu(beam: int, model: WordsOnly) -> None:
    search, tokens = Search(beam, 0.6, "power", max_extra=6), padded(SOURCES)
    expected = beam_search(model, tokens, tokens != PAD, search)
    there, tokens = deepcopy(model).to("cuda", torch.bfloat16), tokens.cuda()
    prepare_for_decoding(there)
    found = beam_search(there, tokens, tokens != PAD, search)
    same = sum(ours[0].tokens == theirs[0].tokens for ours, theirs in zip(found, expected, strict=True))
    assert same >= 0.85 * len(SOURCES)  # A model of this size has many ties.


@pytest.mark.parametrize("positions", [5, 32])
@pytest.mark.parametrize(("beam", "patience"), [(1, None), (4, None), (4, 1.0), (9, None)])
def test_captured_steps_are_those_of_the_model(
    beam: int, patience: float | None, positions: int, model: WordsOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sentences that are removed, slots that run out, and several batches after one another."""
    monkeypatch.setattr(graphs, "_POSITIONS", positions)
    monkeypatch.setattr(graphs, "_MORE", -1.0)
    monkeypatch.setattr(hypotheses, "_FEW_ON_GPU", 16)
    there, search = deepcopy(model).cuda(), Search(beam, 0.6, "power", max_extra=20, patience=patience)
    captured = graphs.graphed(there)
    assert isinstance(captured, graphs.GraphedTransformer)
    for sources in (SOURCES[:40], SOURCES[40:], SOURCES):
        tokens = padded(sources).cuda()
        expected, found = (beam_search(either, tokens, tokens != PAD, search) for either in (there, captured))
        assert [[output.tokens for output in outputs[:1]] for outputs in found] == [
            [output.tokens for output in outputs[:1]] for outputs in expected
        ]
    assert captured.newest is not None


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
