"""Dropout: its share, its seed, and the sites that are options."""

from dataclasses import replace

import pytest
import torch

from transformer_core.models.embeddings import Dropout
from transformer_core.models.layers import EncoderLayer
from transformer_core.presets import BASE, TransformerSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.0)


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


def test_dropout_is_the_same_for_the_same_seed_and_absent_outside_training() -> None:
    x, layer = torch.ones(64, 33), Dropout(0.5)
    torch.manual_seed(4)
    first = layer(x)
    torch.manual_seed(4)
    assert torch.equal(first, layer(x))
    assert torch.equal(layer.eval()(x), x)
