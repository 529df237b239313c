"""Captured steps, recorded and replayed on a CPU: each operation again, on the same tensors and with the same numbers."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.decoding.parity import WordsOnly, made_up_pairs, padded
from transformer_core.corpus.tokens.subword import EOS, PAD
from transformer_core.decoding import hypotheses
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.decoding.hypotheses import Finished
from transformer_core.decoding.sampling import Sampling, sample
from transformer_core.models.ops import decoding_graphs as graphs
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
    monkeypatch.setattr(hypotheses, "_SHARE_DONE", 1 / 2)


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
    monkeypatch.setattr(hypotheses, "_STEPS_AT_FIRST", 8)
    monkeypatch.setattr(graphs, "_POSITIONS", positions)
    monkeypatch.setattr(graphs, "_MORE", -1.0)
    recorded = RecordedTransformer(model)
    for sources in (SOURCES[:20], SOURCES[20:]):
        tokens = padded(sources)
        expected, found = (beam_search(either, tokens, tokens != PAD, search) for either in (model, recorded))
        assert_same(found, expected)
    assert recorded.captures > 3
    assert recorded.replays


def test_a_beam_as_wide_as_the_vocabulary_has_captured_steps() -> None:
    """Its first step leaves one hypothesis fewer than there are subwords, and only the second fills the beam."""
    torch.manual_seed(0)
    model = Transformer(TransformerSize(layers=1, d_model=8, d_ff=8, heads=1, d_k=8, d_v=8, dropout=0.0), 17).double().eval()
    recorded, search = RecordedTransformer(model), Search(17, max_extra=8)
    tokens = padded([[5, 9, EOS], [7, EOS], [16, 4, 4, EOS]])
    expected, found = (beam_search(either, tokens, tokens != PAD, search) for either in (model, recorded))
    assert_same(found, expected)
    assert recorded.replays


def test_captured_steps_begin_with_a_prefix(model: WordsOnly) -> None:
    recorded, search = RecordedTransformer(model), Search(4, max_extra=6)
    tokens, prefix = padded(SOURCES), padded([source[: 1 + number % 4] for number, source in enumerate(SOURCES)])
    expected, found = (beam_search(either, tokens, tokens != PAD, search, prefix) for either in (model, recorded))
    assert_same(found, expected)
    assert recorded.replays


def test_captured_steps_draw_the_same_samples(model: WordsOnly) -> None:
    recorded, tokens = RecordedTransformer(model), padded(SOURCES)
    expected, found = (sample(either, tokens, tokens != PAD, Sampling(3, top_p=0.9, max_extra=6)) for either in (model, recorded))
    assert_same(found, expected)
    assert recorded.replays


def assert_same(found: list[list[Finished]], expected: list[list[Finished]]) -> None:
    """The same outputs but for the rounding of attention, whose products have more slots here."""
    assert [[output.tokens for output in outputs] for outputs in found] == [[output.tokens for output in outputs] for outputs in expected]
    for output, other in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert (output.log_probability, output.score) == pytest.approx((other.log_probability, other.score), abs=1e-5)


def _tensors(result: Any) -> list[Tensor]:
    return [part for part in (result if isinstance(result, tuple | list) else (result,)) if isinstance(part, Tensor)]
