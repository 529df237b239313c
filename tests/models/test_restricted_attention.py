"""Self-attention of a neighbourhood (paper 4) against the full one with a mask made by hand."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transformer_core.models.attention import (
    MultiHeadAttention,
    Neighbourhood,
    attention_weights,
    restricted_attention,
    scaled_dot_product_attention,
)
from transformer_core.models.embeddings import Dropout
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.0)
VOCAB = 23


def queries_keys_values(count: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(length)
    query, key = (torch.randn(count, 2, length, 6, generator=random, dtype=torch.float64).requires_grad_() for _ in range(2))
    return query, key, torch.randn(count, 2, length, 5, generator=random, dtype=torch.float64).requires_grad_()


def assert_same_gradients(one: Tensor, other: Tensor, *inputs: Tensor) -> None:
    for ours, theirs in zip(*(torch.autograd.grad(output.sum(), inputs) for output in (one, other)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-11)


def centred_by_hand(lengths: list[int], width: int, r: int) -> Tensor:
    """(B, 1, S, S), True where a position is seen: r round it, moved inward at the ends."""
    mask = torch.zeros(len(lengths), 1, width, width, dtype=torch.bool)
    for sentence, length in enumerate(lengths):
        for position in range(width):
            first = max(0, min(position - r // 2, length - r))
            mask[sentence, 0, position, first : min(first + r, length)] = True
    return mask


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3), r=st.integers(1, 12))
def test_the_encoders_neighbourhood_is_a_mask_of_r_positions_in_outputs_and_gradients(lengths: list[int], r: int) -> None:
    width = max(lengths)
    query, key, value = queries_keys_values(len(lengths), width)
    real = torch.arange(width) < torch.tensor(lengths)[:, None]
    mask = centred_by_hand(lengths, width, r)
    near = restricted_attention(query, key, value, Neighbourhood.centred(real, r), Dropout(0.0))
    masked = scaled_dot_product_attention(query, key, value, mask, Dropout(0.0))
    rows = real[:, None, :, None]
    assert torch.allclose(near * rows, masked * rows, atol=1e-12)
    weight = torch.randn(near.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * rows
    assert_same_gradients(near * weight, masked * weight, query, key, value)


@settings(deadline=None)
@given(length=st.integers(1, 9), r=st.integers(1, 12))
def test_the_decoders_neighbourhood_is_each_position_and_the_r_minus_1_before_it(length: int, r: int) -> None:
    query, key, value = queries_keys_values(1, length)
    own = torch.arange(length)
    mask = (own[None] <= own[:, None]) & (own[None] > own[:, None] - r)
    near = restricted_attention(query, key, value, Neighbourhood.before(length, r, query.device), Dropout(0.0))
    assert torch.allclose(near, scaled_dot_product_attention(query, key, value, mask, Dropout(0.0)), atol=1e-12)


@pytest.mark.parametrize("r", [8, 9, 50])
def test_a_neighbourhood_of_all_positions_is_full_attention(r: int) -> None:
    torch.manual_seed(0)
    full, restricted = Transformer(SIZE, VOCAB).double(), Transformer(replace(SIZE, neighbourhood=r), VOCAB).double()
    restricted.load_state_dict(full.state_dict())
    source = torch.randint(4, VOCAB, (3, 8), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[1, 5:] = False
    target = torch.randint(4, VOCAB, (3, 8), generator=torch.Generator().manual_seed(2))
    assert torch.allclose(full(source, mask, target), restricted(source, mask, target), atol=1e-12)


def test_attention_is_the_product_of_its_weights_and_values_in_outputs_and_gradients() -> None:
    query, key, value = queries_keys_values(3, 7)
    mask = torch.rand(3, 1, 1, 7, generator=torch.Generator().manual_seed(4)) > 0.3
    mask[..., 0] = True
    weight = torch.randn(3, 2, 7, 5, dtype=torch.float64)
    reference = attention_weights(query, key, mask) @ value
    ours = scaled_dot_product_attention(query, key, value, mask, Dropout(0.0))
    assert torch.allclose(ours, reference, atol=1e-12)
    with torch.no_grad():  # Without gradients the model takes the fused kernel.
        assert torch.allclose(scaled_dot_product_attention(query, key, value, mask, Dropout(0.0)), reference, atol=1e-12)
    assert_same_gradients(reference * weight, ours * weight, query, key, value)


@pytest.mark.parametrize("r", [None, 3])
def test_recorded_weights_are_those_that_made_the_output(r: int | None) -> None:
    torch.manual_seed(5)
    layer = MultiHeadAttention(SIZE).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    real = torch.ones(2, 6, dtype=torch.bool)
    real[0, 4:] = False
    memory = layer.keys_and_values(x)
    visible = real[:, None, None] if r is None else Neighbourhood.centred(real, r)
    with torch.no_grad(), layer.recording() as weights:
        out = layer(layer.queries(x), memory, visible)
    assert len(weights) == 1
    assert torch.allclose(weights[0].sum(-1), torch.ones(2, 4, 6, dtype=torch.float64))
    assert torch.allclose(layer.output((weights[0] @ memory.value).transpose(1, 2).flatten(2)), out, atol=1e-12)
    with torch.no_grad():
        assert torch.equal(layer(layer.queries(x), memory, visible), out)
    assert len(weights) == 1
