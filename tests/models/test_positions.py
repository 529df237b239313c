"""What a model knows of the order of its tokens: sinusoidal, learned and no positions (paper 3.5)."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.0, most_positions=12)
VOCAB = 23
SOURCE = torch.tensor([[4, 9, 6, 17, 8, 21, 3]])
ORDER = torch.tensor([4, 0, 6, 2, 5, 1, 3])

Positions = Literal["sinusoidal", "learned", "none"]


def built(positions: Positions) -> Transformer:
    torch.manual_seed(0)
    return Transformer(replace(SIZE, positions=positions), VOCAB).double().eval()


def encoded(model: Transformer, source: Tensor) -> Tensor:
    return model.encode(source, torch.ones_like(source, dtype=torch.bool))


def test_without_positions_permuting_the_source_permutes_the_memory() -> None:
    model = built("none")
    # Sums of the same numbers in another order: a few units of 2^-53 of numbers of size 1.
    assert torch.allclose(encoded(model, SOURCE[:, ORDER]), encoded(model, SOURCE)[:, ORDER], rtol=0, atol=1e-13)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_with_positions_the_memory_depends_on_the_order_of_the_source(positions: Positions) -> None:
    model = built(positions)
    assert not torch.allclose(encoded(model, SOURCE[:, ORDER]), encoded(model, SOURCE)[:, ORDER], atol=1e-2)


def test_without_positions_the_decoder_still_depends_on_the_order_of_earlier_words() -> None:
    """A position sees itself and those before it, so that the second of two tokens is another than the first."""
    model, target = built("none"), torch.tensor([[2, 5, 7, 11]])
    mask = torch.ones_like(SOURCE, dtype=torch.bool)
    plain, swapped = (model(SOURCE, mask, target[:, order]) for order in ([0, 1, 2, 3], [0, 2, 1, 3]))
    assert not torch.allclose(plain[:, 3], swapped[:, 3], atol=1e-3)


def test_without_positions_there_is_no_greatest_length_and_no_parameter_of_positions() -> None:
    model = built("none")
    assert model.most_positions is None
    assert set(model.state_dict()) == set(built("sinusoidal").state_dict())


def test_learned_positions_beyond_the_longest_sentence_get_no_gradient() -> None:
    model, target = built("learned"), torch.tensor([[2, 5, 7, 11]])
    model(SOURCE, torch.ones_like(SOURCE, dtype=torch.bool), target).square().sum().backward()
    for positions, length in ((model.source_positions, 7), (model.target_positions, 4)):
        trained = positions.weight.grad.abs().sum(dim=1) > 0  # type: ignore[union-attr]
        assert trained.tolist() == [True] * length + [False] * (12 - length)
