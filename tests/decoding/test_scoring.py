"""Forced decoding against a softmax of all logits, beam search, and itself in other batches; of every architecture."""

import math
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.parity import forced_log_probabilities
from tests.models.test_architectures import SIZES as EVERY
from tests.models.test_architectures import VOCAB, built
from transformer_core.corpus.tokens.subword import EOS
from transformer_core.decoding import scoring
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.decoding.scoring import score_tokens
from transformer_core.models.translation import TranslationModel
from transformer_core.sizes import ModelSize

PAPER = EVERY["transformer"]
CHOSEN = ("transformer", "pre-norm", "learned positions", "no tying", "lstm without attention", "lstm, additive",
          "gru, dot", "convolutional")  # fmt: skip
SIZES = {name: EVERY[name] for name in CHOSEN}
SOURCES = [[5, 9, 4, EOS], [17, EOS], [6, 7, 8, 9, 10, 11, EOS], [4, 4, EOS]]
TARGETS = [[8, EOS], [9, 20, 4, 4, 17, EOS], [EOS], [12, 1, 13, EOS]]  # An empty one, and one with an unknown token, among them.


@pytest.fixture(params=SIZES.values(), ids=list(SIZES))
def model(request: pytest.FixtureRequest) -> TranslationModel:
    return built(request.param)


def test_a_token_has_the_logarithm_of_its_softmax_over_the_whole_vocabulary(model: TranslationModel) -> None:
    for source, target, found in zip(SOURCES, TARGETS, score_tokens(model, SOURCES, TARGETS, 16), strict=True):
        assert found == pytest.approx(forced_log_probabilities(model, source, target).tolist(), abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_output_of_beam_search_has_its_log_probability_there(model: TranslationModel, dtype: torch.dtype) -> None:
    model = model.to(dtype)
    source = torch.tensor(SOURCES[2:3])
    # A penalty so high that long outputs win.
    outputs = beam_search(model, source, source > 0, Search(4, 4.0, max_extra=4), most_positions=model.most_positions)[0]
    assert max(len(output.tokens) for output in outputs) == 10
    scored = score_tokens(model, SOURCES[2:3] * len(outputs), [output.tokens for output in outputs], 64)
    # Ten float32 sums of numbers below 10, each exact to 6e-8 of itself: below 1e-5.
    assert [math.fsum(found) for found in scored] == pytest.approx([output.log_probability for output in outputs], abs=1e-5)


TOKENS = st.lists(st.integers(4, VOCAB - 1), max_size=11).map(lambda tokens: [*tokens, EOS])


@settings(deadline=None, max_examples=60)
@given(
    size=st.sampled_from(list(SIZES.values())),
    pairs=st.lists(st.tuples(TOKENS.filter(lambda source: source != [EOS]), TOKENS), min_size=1, max_size=8),
    batch_tokens=st.integers(1, 60),
)
def test_a_score_does_not_depend_on_batch_mates(size: ModelSize, pairs: list[tuple[list[int], list[int]]], batch_tokens: int) -> None:
    model = built(size)
    sources, targets = (list(side) for side in zip(*pairs, strict=True))
    together = score_tokens(model, sources, targets, batch_tokens)
    backwards = score_tokens(model, sources[::-1], targets[::-1], 1_000)[::-1]
    alone = [score_tokens(model, [source], [target], 1)[0] for source, target in pairs]
    # Kernels sum in another order where shapes differ: float64 of some hundred operations on numbers below 10, 2e-16 of itself each.
    for scores, other, single in zip(together, backwards, alone, strict=True):
        assert scores == pytest.approx(single, abs=1e-12, rel=0)
        assert other == pytest.approx(single, abs=1e-12, rel=0)


def test_logits_stand_a_few_rows_at_a_time_and_their_number_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(PAPER)
    whole = score_tokens(model, SOURCES, TARGETS, 1_000)
    counted = Mock(wraps=model.project)
    monkeypatch.setattr(model, "project", counted)
    monkeypatch.setattr(scoring, "_LOGITS_AT_ONCE", 3 * VOCAB)
    sliced = score_tokens(model, SOURCES, TARGETS, 1_000)
    assert [call.args[0].shape[:-1].numel() for call in counted.call_args_list] == [3, 3, 3, 3, 1]
    assert [found for each in sliced for found in each] == pytest.approx([found for each in whole for found in each], abs=1e-12)


def test_memory_is_bounded_by_rows_times_the_longest_side() -> None:
    model = built(PAPER)
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, inputs: shapes.append((len(inputs[0]), max(inputs[0].shape[1], inputs[2].shape[1]))))
    score_tokens(model, SOURCES * 5, TARGETS * 5, 14)
    assert sum(rows for rows, _ in shapes) == 20
    assert max(rows * longest for rows, longest in shapes) <= 14
    score_tokens(model, SOURCES, TARGETS, 2)
    assert [rows for rows, _ in shapes[-4:]] == [1, 1, 1, 1]


def test_low_precision_is_summed_in_float32(model: TranslationModel) -> None:
    exact = score_tokens(model.float(), SOURCES, TARGETS, 64)
    with torch.autocast("cpu", torch.bfloat16):
        rough = score_tokens(model, SOURCES, TARGETS, 64)
    # Of bf16 numbers, of 8 bits, nearly none is left after a softmax over V in float32.
    numbers = torch.tensor([found for each in rough for found in each], dtype=torch.float64)
    assert (numbers.bfloat16().double() != numbers).double().mean() > 0.9
    assert numbers.tolist() == pytest.approx([found for each in exact for found in each], abs=0.3)
