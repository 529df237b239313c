"""A model of base size that is not trained: it copies the source and ends where that ends."""

from pathlib import Path

import torch
from torch import Tensor

from transformer_core import recipes
from transformer_core.corpus.tokens.subword import EOS, Subword, train_subword
from transformer_core.models.directory import ModelConfig, Training, Vocabulary, save_model
from transformer_core.models.layers import DecoderLayer
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize

_OTHERS = 0.1  # Scale of all weights that have no part in copying: they cost the same time and change little.
_SHARPNESS = 5.0  # Of the attention to the position that is copied: its neighbours get about e^-14 of the weight.
_FOR_THE_SHIFT = 32  # Dimensions, the slowest sines and cosines.
_GAIN = 4.0  # Of the copied token over the content of the residual.


def write_copier(size: TransformerSize, vocab_size: int, directory: Path) -> None:
    """Write a model directory; the size is like the base model's, since narrower vectors do not separate all tokens.

    The first d_k dimensions of each vector hold only the position, since embeddings are zero there. In the last layer these make each
    head attend to the source position of the same number and copy its share of the other dimensions: the token there. The last
    dimensions are almost zero where they are sines, and so show the shift of the layer norm.
    """
    torch.manual_seed(1)
    model = Transformer(size, vocab_size)
    last = model.decoder[-1]
    assert isinstance(last, DecoderLayer)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "embedding.weight" and parameter.dim() == 2:
                parameter.mul_(_OTHERS)
        model.embedding.weight[:, : size.d_k] = 0
        model.embedding.weight[:, -_FOR_THE_SHIFT:] = 0
        position, token = torch.eye(size.d_k, size.d_model), _shares(size)
        position[:, -_FOR_THE_SHIFT::2] = -2 / _FOR_THE_SHIFT  # (d_k, D): the dimensions of the position, without the shift.
        attention = last.cross_attention
        attention.query.weight.copy_(position.repeat(size.heads, 1) * _SHARPNESS)
        attention.key.weight.copy_(position.repeat(size.heads, 1) * _SHARPNESS)
        attention.value.weight.copy_(token)
        attention.output.weight.copy_(token.T * _GAIN)
    subword = directory.parent / "spm.model"
    settings = recipes.load("wmt14-en-de-base").bpe.model_copy(update={"vocab_size": vocab_size})
    train_subword((f"w{token}" for token in range(EOS + 1, vocab_size)), subword, settings, model_type="word")
    config = ModelConfig(
        model=size,
        vocabulary=Vocabulary(size=vocab_size, hash=Subword.load(subword).hash),
        source="en",
        target="en",
        training=Training(fingerprint="0", updates=0, target_tokens=0, seconds=0.0),
    )
    save_model(directory, dict(model.state_dict()), config, subword)


def _shares(size: TransformerSize) -> Tensor:
    """Return (H*d_v, D): each head selects its own share of the dimensions that hold tokens."""
    picked = torch.zeros(size.heads, size.d_v, size.d_model)
    for number, dimension in enumerate(range(size.d_k, size.d_model - _FOR_THE_SHIFT)):
        picked[number % size.heads, number // size.heads, dimension] = 1.0
    return picked.flatten(0, 1)
