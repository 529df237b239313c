"""Beam search against brute force, greedy decoding and itself in other batches."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from transformer_core.corpus.subword import BOS, EOS
from transformer_core.decoding.beam import Finished, beam_search
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.0)
WORDS = (4, 5, 6)
VOCAB = 7


class ScriptedState:
    """Prefixes of the rows, one tensor (rows, t)."""

    def __init__(self, rows: int) -> None:
        self.prefixes = [()] * rows

    def select(self, beams: Tensor, sentences: Tensor | None) -> None:
        self.prefixes = [self.prefixes[row] for row in beams.tolist()]


class ScriptedModel:
    """Log-probabilities that depend on the whole prefix, fixed by a seed: a model with no structure to lean on."""

    def __init__(self, seed: int, beam: int) -> None:
        self._seed = seed
        self._beam = beam

    def start(self, source: Tensor, source_mask: Tensor) -> ScriptedState:
        return ScriptedState(len(source) * self._beam)

    def step(self, tokens: Tensor, state: ScriptedState) -> Tensor:
        state.prefixes = [(*prefix, token) for prefix, token in zip(state.prefixes, tokens.tolist(), strict=True)]
        return torch.stack([self.logits(prefix) for prefix in state.prefixes])

    def logits(self, prefix: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self._seed, *prefix)) % (1 << 31))
        return 2 * torch.randn(VOCAB, generator=generator, dtype=torch.float64)


def brute_force(model: ScriptedModel, greatest_length: int, alpha: float) -> list[tuple[float, list[int]]]:
    """All outputs up to a length with their scores, best first."""
    scored = []
    for length in range(1, greatest_length + 1):
        for words in itertools.product(WORDS, repeat=length - 1):
            output = [*words, EOS]
            log_probability = 0.0
            for position, token in enumerate(output):
                step = model.logits((BOS, *output[:position])).log_softmax(-1).clone()
                log_probability += step[token].item() if position + 1 < greatest_length or token == EOS else -math.inf
            scored.append((log_probability / ((5 + length) / 6) ** alpha, output))
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("seed", range(6))
def test_a_beam_as_wide_as_the_space_finds_what_brute_force_finds(seed: int, alpha: float) -> None:
    greatest_length = 4  # 1 + 3 + 9 + 27 outputs
    model = ScriptedModel(seed, beam=40)
    source = torch.tensor([[4, EOS]])
    found = beam_search(model, source, source > 0, beam=40, alpha=alpha, max_extra=greatest_length - 1)[0]
    score, output = brute_force(model, greatest_length, alpha)[0]
    assert found[0].tokens == output
    assert found[0].score == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("seed", range(6))
def test_stopping_early_never_costs_the_best_output(seed: int, alpha: float) -> None:
    """With one word only, beam 2 holds every output there is, and only the stopping rule could lose one."""
    model = ScriptedModel(seed, beam=2)
    forbid = torch.zeros(VOCAB, dtype=torch.float64)
    forbid[list(WORDS[1:])] = -torch.inf
    plain = model.logits
    model.logits = lambda prefix: plain(prefix) + forbid  # type: ignore[method-assign]
    source = torch.tensor([[4, 4, 4, EOS]])
    found = beam_search(model, source, source > 0, beam=2, alpha=alpha, max_extra=9)[0]
    scores = []
    for length in range(1, 13):
        output = [*[WORDS[0]] * (length - 1), EOS]
        log_probability = sum(model.logits((BOS, *output[:i])).log_softmax(-1)[token].item() for i, token in enumerate(output))
        scores.append(log_probability / ((5 + length) / 6) ** alpha)
    assert found[0].score == pytest.approx(max(scores), abs=1e-9)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(5)
    return Transformer(SIZE, 40).double().eval()


def random_sources(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        [*torch.randint(4, 40, (int(torch.randint(1, 12, (1,), generator=generator)),), generator=generator).tolist(), EOS]
        for _ in range(count)
    ]


def search(model: Transformer, sources: list[list[int]], beam: int, alpha: float = 0.6) -> list[list[Finished]]:
    source = torch.zeros(len(sources), max(map(len, sources)), dtype=torch.long)
    for row, tokens in zip(source, sources, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return beam_search(model, source, source > 0, beam, alpha, max_extra=8)


def test_beam_of_one_without_penalty_is_greedy_decoding(model: Transformer) -> None:
    for tokens in random_sources(8, seed=6):
        source = torch.tensor([tokens])
        greatest_length = len(tokens) - 1 + 8
        output: list[int] = []
        with torch.inference_mode():
            while EOS not in output:
                logits = model.project(model(source, source > 0, torch.tensor([[BOS, *output]])))[0, -1]
                logits[:3] = -torch.inf
                output.append(int(logits.argmax()) if len(output) + 1 < greatest_length else EOS)
        assert search(model, [tokens], beam=1, alpha=0.0)[0][0].tokens == output


def test_a_translation_does_not_depend_on_its_batch_mates(model: Transformer) -> None:
    sources = random_sources(12, seed=7)
    together = search(model, sources, beam=4)
    backwards = search(model, sources[::-1], beam=4)[::-1]
    alone = [search(model, [tokens], beam=4)[0] for tokens in sources]
    for one, other, single in zip(together, backwards, alone, strict=True):
        assert one[0].tokens == other[0].tokens == single[0].tokens
        assert one[0].score == pytest.approx(single[0].score, abs=1e-10)


def test_outputs_are_ranked_end_once_and_hold_no_reserved_token(model: Transformer) -> None:
    for tokens, outputs in zip(sources := random_sources(12, seed=8), search(model, sources, beam=4), strict=True):
        assert [output.score for output in outputs] == sorted((output.score for output in outputs), reverse=True)
        assert len({tuple(output.tokens) for output in outputs}) == len(outputs) <= 4
        for output in outputs:
            assert output.tokens[-1] == EOS
            assert EOS not in output.tokens[:-1]
            assert all(token > EOS for token in output.tokens[:-1])
            assert len(output.tokens) <= len(tokens) - 1 + 8


def test_the_score_is_the_forced_log_probability_over_the_papers_penalty(model: Transformer) -> None:
    tokens = random_sources(1, seed=9)[0]
    best = search(model, [tokens], beam=4)[0][0]
    source, output = torch.tensor([tokens]), torch.tensor([best.tokens])
    with torch.inference_mode():
        shifted = torch.cat((torch.tensor([[BOS]]), output[:, :-1]), dim=1)
        steps = model.project(model(source, source > 0, shifted)).log_softmax(-1)
    forced = steps.gather(2, output[:, :, None]).sum().item()
    assert best.log_probability == pytest.approx(forced, abs=1e-9)
    assert best.score == pytest.approx(forced / ((5 + len(best.tokens)) / 6) ** 0.6, abs=1e-9)
