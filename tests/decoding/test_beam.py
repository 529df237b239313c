"""Beam search against brute force, greedy decoding and itself in other batches; its penalties, prefixes, ensembles and products."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.decoding.parity import forced_log_probabilities, made_up_pairs, searched
from transformer_core.config import Penalty
from transformer_core.corpus.tokens.subword import BOS, EOS, UNK
from transformer_core.decoding import beam as beam_module
from transformer_core.decoding.beam import Search
from transformer_core.decoding.hypotheses import logsumexp, top_logits
from transformer_core.decoding.translator import Ensemble
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.0)
WORDS = (4, 5, 6)
VOCAB = 7


class ScriptedState:
    """Prefixes of the rows, a tuple of t tokens each."""

    def __init__(self, rows: int) -> None:
        self.prefixes = [()] * rows

    def select(self, beams: Tensor, sentences: Tensor | None) -> None:
        self.prefixes = [self.prefixes[row] for row in beams.tolist()]


class ScriptedModel:
    """Log-probabilities that depend on the whole prefix, fixed by a seed: a model with no structure to lean on."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def start(self, source: Tensor, source_mask: Tensor) -> ScriptedState:
        return ScriptedState(len(source))

    def step(self, tokens: Tensor, state: ScriptedState) -> Tensor:
        state.prefixes = [(*prefix, token) for prefix, token in zip(state.prefixes, tokens.tolist(), strict=True)]
        return torch.stack([self.logits(prefix) for prefix in state.prefixes])

    def logits(self, prefix: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self._seed, *prefix)) % (1 << 31))
        return 2 * torch.randn(VOCAB, generator=generator, dtype=torch.float64)


def brute_force(model: ScriptedModel, max_length: int, penalty: Callable[[int], float]) -> list[tuple[float, list[int]]]:
    """All outputs up to a length with their scores, best first."""
    scored = []
    for length in range(1, max_length + 1):
        for words in itertools.product(WORDS, repeat=length - 1):
            output = [*words, EOS]
            log_probability = 0.0
            for position, token in enumerate(output):
                step = model.logits((BOS, *output[:position])).log_softmax(-1).clone()
                log_probability += step[token].item() if position + 1 < max_length or token == EOS else -math.inf
            scored.append((log_probability / penalty(length), output))
    return sorted(scored, reverse=True)


PENALTIES: dict[Penalty, Callable[[int, float], float]] = {
    "wu": lambda length, alpha: ((5 + length) / 6) ** alpha,
    "power": lambda length, alpha: length**alpha,
}


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("seed", range(6))
def test_a_beam_as_wide_as_the_space_finds_what_brute_force_finds(seed: int, alpha: float, penalty: Penalty) -> None:
    max_length = 4  # 1 + 3 + 9 + 27 outputs
    model = ScriptedModel(seed)
    found = searched(model, [[4, EOS]], Search(beam=40, alpha=alpha, penalty=penalty, max_extra=max_length - 1))[0]
    score, output = brute_force(model, max_length, lambda length: PENALTIES[penalty](length, alpha))[0]
    assert found[0].tokens == output
    assert found[0].score == pytest.approx(score, abs=1e-9)


def plain_beam_search(model: ScriptedModel, max_length: int, settings: Search) -> list[tuple[float, list[int]]]:
    """The search as one writes it down, for one sentence, in lists; best first."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    ended = 0
    for length in range(1, max_length + 1):
        candidates = []
        for log_probability, output in live:
            step = model.logits((BOS, *output)).log_softmax(-1).tolist()
            allowed = (EOS,) if length == max_length else WORDS if length == 1 and settings.patience is not None else (EOS, *WORDS)
            candidates += [(log_probability + step[token], [*output, token]) for token in allowed]
        candidates = sorted(candidates, reverse=True)[: 2 * settings.beam]
        counted = candidates if settings.patience is None else candidates[: settings.beam]
        new = [(score / PENALTIES[settings.penalty](length, settings.alpha), output) for score, output in counted if output[-1] == EOS]
        ended += len(new)
        finished = sorted([*finished, *new], reverse=True)[: settings.beam]
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][: settings.beam]
        if settings.patience is not None:
            done = ended >= settings.beam * settings.patience
        else:
            reachable = max((score for score, _ in live), default=-math.inf) / PENALTIES[settings.penalty](max_length, settings.alpha)
            done = bool(finished) and finished[0][0] >= reachable
        if done:
            break
    return finished


@pytest.mark.parametrize("patience", [None, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("beam", [2, 3, 5])
def test_a_narrow_beam_is_the_search_as_one_writes_it_down(beam: int, patience: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_module, "_STEPS_AT_FIRST", 1)  # The trace grows on the way.
    settings = Search(beam, 0.6, "power", max_extra=8, patience=patience)
    ends = set()
    for seed in range(12):
        model = ScriptedModel(seed)
        found = searched(model, [[4, 4, EOS]], settings)[0]
        wanted = plain_beam_search(model, 10, settings)
        assert [output.tokens for output in found] == [output for _, output in wanted]
        assert [output.score for output in found] == pytest.approx([score for score, _ in wanted], abs=1e-9)
        ends.add(max(len(output.tokens) for output in found))
    assert len(ends) > 2  # Searches of different lengths were compared.


@pytest.mark.parametrize(("beam", "alpha"), [(2, 0.6), (4, 0.0), (4, 0.6), (4, 2.0)])
def test_each_entry_of_an_nbest_list_is_that_of_a_search_that_is_never_stopped(model: Transformer, beam: int, alpha: float) -> None:
    sources = random_sources(400, seed=1)
    settings = Search(beam, alpha, max_extra=12, nbest=beam)
    found = searched(model, sources, settings)
    # One more than there is room for is never proved, so this search goes on to the maximum length.
    unstopped = searched(model, sources, replace(settings, nbest=beam + 1))
    assert [len(ranked) for ranked in found] == [beam] * 400
    for ranked, every in zip(found, unstopped, strict=True):
        assert [output.tokens for output in ranked] == [output.tokens for output in every]
        assert [output.score for output in ranked] == pytest.approx([output.score for output in every], abs=1e-9)
    best = searched(model, sources, replace(settings, nbest=1))
    assert [ranked[0].tokens for ranked in best] == [ranked[0].tokens for ranked in found]
    if alpha < 1:  # With more, the longest outputs are the best, and every search goes to the end.
        assert any(len(ranked) < beam or ranked[-1].tokens != every[-1].tokens for ranked, every in zip(best, found, strict=True))


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(5)
    return Transformer(SIZE, 40).double().eval()


def random_sources(count: int, seed: int) -> list[list[int]]:
    return [source for source, _ in made_up_pairs(count, seed)]


BEAM = Search(beam=4, max_extra=8)


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_a_beam_of_one_is_greedy_decoding_whatever_the_penalty(model: Transformer, alpha: float) -> None:
    for tokens in random_sources(8, seed=6):
        source = torch.tensor([tokens])
        max_length = len(tokens) - 1 + 8
        output: list[int] = []
        with torch.inference_mode():
            while EOS not in output:
                logits = model.project(model(source, source > 0, torch.tensor([[BOS, *output]])))[0, -1]
                logits[:3] = -torch.inf
                output.append(int(logits.argmax()) if len(output) + 1 < max_length else EOS)
        assert searched(model, [tokens], replace(BEAM, beam=1, alpha=alpha))[0][0].tokens == output


@pytest.mark.parametrize("patience", [None, 1.0, 2.0])
def test_greedy_search_ends_with_its_output_whatever_the_patience(patience: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, steps = ScriptedModel(1), list[int]()
    step = model.step
    monkeypatch.setattr(model, "step", lambda tokens, state: steps.append(len(tokens)) or step(tokens, state))
    (output,) = searched(model, [[4, EOS]], Search(beam=1, max_extra=100, patience=patience))[0]
    assert steps == [1] * len(output.tokens)
    assert len(output.tokens) < 50


def test_outputs_begin_with_their_prefixes_and_are_scored_from_the_first_token_on(model: Transformer) -> None:
    sources = random_sources(6, seed=10)
    prefixes = [[7, 8], [], [9], [4, 4, 4, 4], [5], []]
    together = searched(model, sources, BEAM, prefixes)
    for tokens, prefix, outputs in zip(sources, prefixes, together, strict=True):
        assert all(output.tokens[: len(prefix)] == prefix for output in outputs)
        assert outputs[0].tokens == searched(model, [tokens], BEAM, [prefix])[0][0].tokens
        forced = forced_log_probabilities(model, tokens, outputs[0].tokens).sum().item()
        assert outputs[0].log_probability == pytest.approx(forced, abs=1e-9)
    free = searched(model, sources, BEAM)
    assert [together[row][0].tokens for row in (1, 5)] == [free[row][0].tokens for row in (1, 5)]


def test_a_prefix_may_hold_the_unknown_token_and_be_longer_than_an_output(model: Transformer) -> None:
    outputs = searched(model, [[5, EOS], [6, EOS]], BEAM, [[UNK, 7], []])
    assert outputs[0][0].tokens[:2] == [UNK, 7]
    assert math.isfinite(outputs[0][0].log_probability)
    assert UNK not in outputs[0][0].tokens[2:] + outputs[1][0].tokens
    longer = [4] * 20  # Than an output may be.
    assert searched(model, [[5, EOS]], BEAM, [longer])[0][0].tokens == [*longer, EOS]


def test_an_ensemble_has_the_mean_of_the_probabilities(model: Transformer) -> None:
    torch.manual_seed(12)
    other = Transformer(SIZE, 40).double().eval()
    sources = random_sources(8, seed=12)
    for tokens, outputs in zip(sources, searched(Ensemble([model, other]), sources, BEAM), strict=True):
        for output in outputs:
            steps = torch.stack([forced_log_probabilities(part, tokens, output.tokens) for part in (model, other)]).exp().mean(dim=0).log()
            assert output.log_probability == pytest.approx(steps.sum().item(), abs=1e-9)


def test_a_penalty_beyond_float32_leaves_no_sentence_without_output(model: Transformer) -> None:
    sources = random_sources(4, seed=3)
    assert all(searched(model.float(), sources, replace(BEAM, alpha=200.0, penalty="power")))


@given(st.integers(1, 5), st.integers(4, 2_000), st.integers(1, 12), st.integers(1, 10_000), st.integers(0, 999))
def test_the_greatest_are_those_of_topk_also_among_equals(rows: int, width: int, count: int, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (rows, width), generator=generator).double()
    count = min(count, width)
    values, places = top_logits(logits, count)
    assert torch.equal(values, logits.topk(count, dim=1).values)
    assert torch.equal(logits.gather(1, places), values)
    assert all(len(set(row)) == count for row in places.tolist())


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_the_normaliser_is_that_of_torch_depends_on_no_other_row_and_is_summed_in_float32(scale: float) -> None:
    logits = scale * torch.randn(33, 70_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits[:, 3] = -torch.inf
    together = logsumexp(logits)
    assert torch.allclose(together, logits.logsumexp(dim=1), rtol=1e-12, atol=0)
    assert torch.equal(torch.cat([logsumexp(row[None]) for row in logits]), together)
    assert torch.equal(logsumexp(logits[5:9]), together[5:9])
    low = logits[:4].bfloat16()
    assert torch.allclose(logsumexp(low), low.double().logsumexp(dim=1).float(), rtol=1e-6)
