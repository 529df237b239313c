"""The Transformer against independent code: PyTorch's own layers. For Hugging Face's Marian see test_hugging_face.py."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from tests.models.on_disk import with_drawn_norms
from transformer_core.models.attention import MultiHeadAttention
from transformer_core.models.layers import FeedForward
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

VOCAB, D = 31, 24


def ours(norm: Literal["post", "pre"]) -> Transformer:
    torch.manual_seed(0)
    size = TransformerSize(layers=3, d_model=D, d_ff=40, heads=4, d_k=6, d_v=6, dropout=0.1, norm=norm)
    return with_drawn_norms(Transformer(size, VOCAB).eval())


def batch() -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    source, target = torch.randint(4, VOCAB, (3, 7), generator=random), torch.randint(4, VOCAB, (3, 6), generator=random)
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[0, 4:] = mask[2, 6:] = False
    return source, mask, target


def put(target: Tensor | None, source: Tensor) -> None:
    assert target is not None
    with torch.no_grad():
        target.copy_(source)


def put_attention(theirs: nn.MultiheadAttention, mine: MultiHeadAttention) -> None:
    put(theirs.in_proj_weight, torch.cat((mine.query.weight, mine.key.weight, mine.value.weight)))
    put(theirs.in_proj_bias, torch.zeros(3 * D))
    put(theirs.out_proj.weight, mine.output.weight)
    put(theirs.out_proj.bias, torch.zeros(D))


def put_linear(theirs: nn.Linear | nn.LayerNorm, mine: nn.Linear | nn.LayerNorm) -> None:
    put(theirs.weight, mine.weight)
    put(theirs.bias, mine.bias)


def put_feed_forward(theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, mine: FeedForward) -> None:
    put_linear(theirs.linear1, mine.inner)
    put_linear(theirs.linear2, mine.outer)


def pytorchs(model: Transformer) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """PyTorch's stacks with the same weights."""
    first = model.size.norm == "pre"
    settings = {"d_model": D, "nhead": 4, "dim_feedforward": 40, "dropout": 0.0, "batch_first": True, "norm_first": first}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**settings), 3, nn.LayerNorm(D) if first else None, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**settings), 3, nn.LayerNorm(D) if first else None)
    for theirs, mine in zip(encoder.layers, model.encoder, strict=True):
        put_attention(theirs.self_attn, mine.self_attention)
        put_feed_forward(theirs, mine.feed_forward)
        put_linear(theirs.norm1, mine.round_attention.norm)
        put_linear(theirs.norm2, mine.round_feed_forward.norm)
    for theirs, mine in zip(decoder.layers, model.decoder, strict=True):
        put_attention(theirs.self_attn, mine.self_attention)
        put_attention(theirs.multihead_attn, mine.cross_attention)
        put_feed_forward(theirs, mine.feed_forward)
        put_linear(theirs.norm1, mine.round_self_attention.norm)
        put_linear(theirs.norm2, mine.round_cross_attention.norm)
        put_linear(theirs.norm3, mine.round_feed_forward.norm)
    if model.encoder_norm is not None and model.decoder_norm is not None:
        put_linear(encoder.norm, model.encoder_norm)
        put_linear(decoder.norm, model.decoder_norm)
    return encoder.double(), decoder.double()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_outputs_and_gradients_equal_those_of_pytorchs_transformer(norm: Literal["post", "pre"]) -> None:
    model = ours(norm).double()
    encoder, decoder = pytorchs(model)
    source, mask, target = batch()
    weights = torch.randn(3, 6, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    mine = model(source, mask, target)
    (mine * weights).sum().backward()

    embedding = model.embedding.weight.detach().clone().requires_grad_()

    def embed(ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, embedding) * D**0.5 + model.source_positions(0, ids.shape[1])

    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    memory = encoder(embed(source), src_key_padding_mask=~mask)
    theirs = decoder(embed(target), memory, tgt_mask=future, memory_key_padding_mask=~mask)
    (theirs * weights).sum().backward()

    assert torch.allclose(mine, theirs, atol=1e-10)
    assert torch.allclose(model.embedding.weight.grad, embedding.grad, atol=1e-9)
    for theirs_layer, layer in zip(decoder.layers, model.decoder, strict=True):
        parts = (layer.cross_attention.query, layer.cross_attention.key, layer.cross_attention.value)
        gradient = torch.cat([part.weight.grad for part in parts if part.weight.grad is not None])
        assert torch.allclose(gradient, theirs_layer.multihead_attn.in_proj_weight.grad, atol=1e-9)
        assert torch.allclose(layer.feed_forward.inner.weight.grad, theirs_layer.linear1.weight.grad, atol=1e-9)
