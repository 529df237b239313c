"""The Transformer against independent code: PyTorch's own layers. For Hugging Face's Marian see test_hugging_face.py."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from tests.models.on_disk import with_drawn_norms
from transformer_core.models.attention import MultiHeadAttention
from transformer_core.models.layers import DecoderLayer, EncoderLayer, Residual
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

VOCAB, D = 31, 24


def batch() -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    source, target = torch.randint(4, VOCAB, (3, 7), generator=random), torch.randint(4, VOCAB, (3, 6), generator=random)
    mask = torch.ones_like(source, dtype=torch.bool)
    mask[0, 4:] = mask[2, 6:] = False
    return source, mask, target


def weights_of(layer: EncoderLayer | DecoderLayer) -> dict[str, Tensor]:
    """The weights of a layer by PyTorch's names; its attention has biases."""
    found: dict[str, Tensor] = {}
    attentions = [module for module in layer.children() if isinstance(module, MultiHeadAttention)]
    for name, own in zip(("self_attn", "multihead_attn"), attentions, strict=False):
        found |= {f"{name}.in_proj_weight": torch.cat((own.query.weight, own.key.weight, own.value.weight))}
        found |= {f"{name}.in_proj_bias": torch.zeros(3 * D), f"{name}.out_proj.bias": torch.zeros(D)}
        found[f"{name}.out_proj.weight"] = own.output.weight
    norms = [module.norm for module in layer.children() if isinstance(module, Residual)]
    named = {f"norm{n}": norm for n, norm in enumerate(norms, 1)}
    named |= {"linear1": layer.feed_forward.inner, "linear2": layer.feed_forward.outer}
    return found | {f"{name}.{key}": weight for name, module in named.items() for key, weight in module.state_dict().items()}


def pytorchs(model: Transformer) -> tuple[nn.TransformerEncoder, nn.TransformerDecoder]:
    """PyTorch's stacks with the same weights."""
    first = model.size.norm == "pre"
    settings = {"d_model": D, "nhead": 4, "dim_feedforward": 40, "dropout": 0.0, "batch_first": True, "norm_first": first}
    norms = [nn.LayerNorm(D) if first else None for _ in range(2)]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**settings), 3, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**settings), 3, norms[1])
    for theirs, layers, norm in ((encoder, model.encoder, model.encoder_norm), (decoder, model.decoder, model.decoder_norm)):
        own = {f"layers.{n}.{name}": weight for n, layer in enumerate(layers) for name, weight in weights_of(layer).items()}
        theirs.load_state_dict(own | {f"norm.{name}": weight for name, weight in (norm.state_dict() if norm else {}).items()})
    return encoder.double(), decoder.double()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_outputs_and_gradients_equal_those_of_pytorchs_transformer(norm: Literal["post", "pre"]) -> None:
    torch.manual_seed(0)
    size = TransformerSize(layers=3, d_model=D, d_ff=40, heads=4, d_k=6, d_v=6, dropout=0.1, norm=norm)
    model = with_drawn_norms(Transformer(size, VOCAB).eval()).double()
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
