"""Sampling: the distribution it draws from, and that a sentence's draws depend on nothing but itself and the seed."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.decoding.parity import forced_log_probabilities, padded
from transformer_core.corpus.tokens.subword import BOS, EOS, UNK
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.decoding.hypotheses import Finished
from transformer_core.decoding.sampling import Sampling, sample
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.0)
SOURCES = [[4, 5, 6, EOS], [7, EOS], [8, 9, EOS], [4, 5, 6, EOS], [10, 11, 12, 13, 14, EOS]]


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(5)
    return Transformer(SIZE, 30).double().eval()


def drawn(
    model: Transformer, sources: list[list[int]], settings: Sampling, prefixes: list[list[int]] | None = None
) -> list[list[Finished]]:
    source = padded(sources)
    return sample(model, source, source > 0, settings, None if prefixes is None else padded(prefixes))


def distribution(model: Transformer, source: list[int], before: list[int]) -> Tensor:
    """(V,) the model's log-probabilities of the token after `before`."""
    with torch.inference_mode():
        tokens = torch.tensor([source])
        return model.project(model(tokens, tokens > 0, torch.tensor([[BOS, *before]]))).log_softmax(-1)[0, -1]


def allowed(log_probability: Tensor) -> Tensor:
    """(V,) probabilities where reserved tokens are impossible."""
    possible = log_probability.clone()
    possible[:3] = -torch.inf
    return possible.softmax(0)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_first_tokens_are_as_frequent_as_they_are_likely(model: Transformer, temperature: float) -> None:
    draws = 2_000
    outputs = drawn(model, [SOURCES[0]], Sampling(draws, temperature, max_extra=1))[0]
    assert len(outputs) == draws
    counts = torch.bincount(torch.tensor([output.tokens[0] for output in outputs]), minlength=30).double()
    expected = allowed(distribution(model, SOURCES[0], []) / temperature) * draws
    assert (counts[:3] == 0).all()
    # A count is binomial, its deviation at most sqrt(expected); 27 of them beyond 5 deviations: one run in 60,000, and the seed is fixed.
    assert ((counts - expected).abs() <= 5 * expected.sqrt() + 1).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    "settings",
    [Sampling(temperature=1e-3), Sampling(temperature=1e-300), Sampling(top_k=1), Sampling(top_p=1e-6), Sampling(top_p=1e-50)],
    ids=str,
)
def test_where_only_the_likeliest_token_is_left_sampling_is_greedy_search(
    model: Transformer, settings: Sampling, dtype: torch.dtype
) -> None:
    source = padded(SOURCES)
    greedy = beam_search(model.to(dtype), source, source > 0, Search(beam=1))
    assert [outputs[0].tokens for outputs in drawn(model, SOURCES, settings)] == [outputs[0].tokens for outputs in greedy]


def test_top_k_and_top_p_leave_the_unlikely_out(model: Transformer) -> None:
    for settings in (Sampling(40, top_k=3), Sampling(40, top_p=0.3)):
        for output in drawn(model, [SOURCES[0]], settings)[0]:
            for place, token in enumerate(output.tokens[:8]):
                probability, order = allowed(distribution(model, SOURCES[0], output.tokens[:place])).sort(descending=True)
                rank = order.tolist().index(token)
                if settings.top_k:
                    assert rank < 3
                else:
                    assert probability[:rank].sum() < 0.3


def test_draws_depend_on_sentence_and_seed_alone(model: Transformer) -> None:
    settings = Sampling(3, seed=7)
    together = drawn(model, SOURCES, settings)
    for tokens, outputs in zip(SOURCES, together, strict=True):
        assert [output.tokens for output in drawn(model, [tokens], settings)[0]] == [output.tokens for output in outputs]
    assert [output.tokens for output in together[0]] == [output.tokens for output in together[3]]
    more = {tuple(output.tokens) for output in drawn(model, [SOURCES[0]], replace(settings, samples=20))[0]}
    assert {tuple(output.tokens) for output in together[0]} <= more
    assert len({tuple(output.tokens) for output in together[0]}) == 3
    assert drawn(model, SOURCES, replace(settings, seed=8)) != together


def test_log_probabilities_are_the_models_own_and_rank_the_samples(model: Transformer) -> None:
    for tokens, outputs in zip(SOURCES, drawn(model, SOURCES, Sampling(4, temperature=2.0, top_k=9)), strict=True):
        assert [output.log_probability for output in outputs] == sorted((output.log_probability for output in outputs), reverse=True)
        for output in outputs:
            forced = forced_log_probabilities(model, tokens, output.tokens).sum().item()
            assert output.score == output.log_probability == pytest.approx(forced, abs=1e-9)
            assert output.tokens.index(EOS) == len(output.tokens) - 1 <= len(tokens) - 1 + Sampling().max_extra - 1


def test_samples_begin_with_their_prefix_which_may_hold_the_unknown_token(model: Transformer) -> None:
    outputs = drawn(model, SOURCES[:2], Sampling(5), prefixes=[[UNK, 21], []])
    assert [output.tokens[:2] for output in outputs[0]] == [[UNK, 21]] * 5
    assert all(math.isfinite(output.log_probability) for output in outputs[0])
    free = drawn(model, [SOURCES[1]], Sampling(5))[0]
    assert [output.tokens for output in outputs[1]] == [output.tokens for output in free]
