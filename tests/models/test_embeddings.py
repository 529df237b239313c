"""Sinusoidal, learned and no positions (paper 3.5), and dropout: its share, its seed and its optional sites."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from transformer_core.models.embeddings import Dropout, SinusoidalPositions, sinusoidal_positions
from transformer_core.models.layers import EncoderLayer
from transformer_core.models.transformer import Transformer
from transformer_core.presets import BASE, TransformerSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.0, most_positions=12)
VOCAB = 23
SOURCE = torch.tensor([[4, 9, 6, 17, 8, 21, 3]])
ORDER = torch.tensor([4, 0, 6, 2, 5, 1, 3])

Positions = Literal["sinusoidal", "learned", "none"]


def built(positions: Positions) -> Transformer:
    torch.manual_seed(0)
    return Transformer(replace(SIZE, positions=positions), VOCAB).double().eval()


def encoded(model: Transformer, source: Tensor) -> Tensor:
    return model.encode(source, torch.ones_like(source, dtype=torch.bool))[0]


def test_without_positions_permuting_the_source_permutes_the_memory() -> None:
    model = built("none")
    # Sums of the same numbers in another order: a few units of 2^-53 of numbers of size 1.
    assert torch.allclose(encoded(model, SOURCE[:, ORDER]), encoded(model, SOURCE)[:, ORDER], rtol=0, atol=1e-13)


def test_without_positions_the_decoder_still_depends_on_the_order_of_earlier_words_and_there_is_no_max_length() -> None:
    """A position sees itself and those before it, so that the second of two tokens is another than the first."""
    model, target = built("none"), torch.tensor([[2, 5, 7, 11]])
    mask = torch.ones_like(SOURCE, dtype=torch.bool)
    plain, swapped = (model(SOURCE, mask, target[:, order]) for order in ([0, 1, 2, 3], [0, 2, 1, 3]))
    assert not torch.allclose(plain[:, 3], swapped[:, 3], atol=1e-3)
    assert model.most_positions is None
    assert set(model.state_dict()) == set(built("sinusoidal").state_dict())


def test_learned_positions_beyond_the_longest_sentence_get_no_gradient() -> None:
    model, target = built("learned"), torch.tensor([[2, 5, 7, 11]])
    model(SOURCE, torch.ones_like(SOURCE, dtype=torch.bool), target).square().sum().backward()
    for positions, length in ((model.source_positions, 7), (model.target_positions, 4)):
        trained = positions.weight.grad.abs().sum(dim=1) > 0  # type: ignore[union-attr]
        assert trained.tolist() == [True] * length + [False] * (12 - length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_lower_precisions_sinusoids_are_the_float32_formula_to_the_bit(dtype: torch.dtype) -> None:
    """As they were when the table was float32 and was cast from there."""
    frequency = torch.exp(torch.arange(0, 192, 2, dtype=torch.float64) * (-math.log(10000.0) / 192))
    angle = torch.arange(2_000, dtype=torch.float64)[:, None] * frequency
    expected = torch.stack((angle.sin(), angle.cos()), dim=-1).reshape(2_000, 192).float().to(dtype)
    assert torch.equal(sinusoidal_positions(2_000, 192, dtype), expected)
    cast = SinusoidalPositions(192).double().to(dtype)
    for first, count in ((0, 200), (1_500, 500)):  # The second makes the table grow.
        assert torch.equal(cast(first, count), expected[first : first + count])


@pytest.mark.parametrize("first", [0, 250, 5_000])
def test_a_model_cast_to_float64_adds_float64_sinusoids_at_any_length(first: int) -> None:
    """PE(position, column) in Python's floats.

    With u = 2^-53 and a = 2i/d ln 10000, the angle position * e^-a has a relative error of at most 3u(1 + a) on either side: the rounding
    of a, of its exponential, of the product. As (1 + a) e^-a <= 1, the two differ by at most 6u < 7e-16 a position; sine and cosine add
    an ulp each.
    """
    angles = [[position / 10000 ** (2 * pair / SIZE.d_model) for pair in range(SIZE.d_model // 2)] for position in range(first, first + 10)]
    expected = [[wave(angle) for angle in row for wave in (math.sin, math.cos)] for row in angles]
    for model in (Transformer(SIZE, VOCAB).double(), Transformer(SIZE, VOCAB).bfloat16().to("cpu", torch.float64)):
        for positions in (model.source_positions, model.target_positions):
            table = positions(first, 10)  # type: ignore[misc]
            assert table.dtype == torch.float64
            assert torch.allclose(table, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15 * (first + 10))


@pytest.mark.parametrize("site", ["attention_dropout", "relu_dropout"])
def test_attention_and_relu_dropout_are_options_that_are_off_in_the_papers_models(site: str) -> None:
    assert getattr(BASE, site) == 0
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    layer = EncoderLayer(replace(SIZE, **{site: 0.5}))  # type: ignore[arg-type]
    assert not torch.equal(layer(x, None), layer(x, None))
    assert torch.equal(layer.eval()(x, None), layer(x, None))


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    torch.manual_seed(3)
    dropped = Dropout(0.3)(torch.ones(1000, 1001))
    # A million draws: the share's standard deviation is sqrt(0.3 * 0.7 / 1e6) = 0.0005; five of them.
    assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.0025)
    assert dropped.double().mean().item() == pytest.approx(1.0, abs=0.005)
