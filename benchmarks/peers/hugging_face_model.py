"""A Transformer of ours as a model of Hugging Face's transformers: Marian where the norm is post, M2M100 where it is pre."""

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.m2m_100.modeling_m2m_100 import M2M100ForConditionalGeneration
from transformers.models.marian.modeling_marian import MarianMTModel

from transformer_core.corpus.subword import BOS, EOS, PAD
from transformer_core.models.attention import MultiHeadAttention
from transformer_core.models.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel

_POSITIONS = 512


def fits(model: TranslationModel) -> bool:
    """Whether these classes can hold a model: theirs share one matrix and have keys and values of d_model / heads."""
    if not isinstance(model, Transformer):
        return False
    size = model.size
    return size.tied == "all" and size.neighbourhood is None and size.d_k == size.d_v == size.d_model // size.heads


def converted(model: Transformer) -> Any:
    """The same model, in float32, ready to generate. What they have more, biases of attention, is zero."""
    size = model.size
    settings: dict[str, Any] = {
        "vocab_size": len(model.output_weight),
        "d_model": size.d_model,
        "encoder_layers": size.layers,
        "decoder_layers": size.layers,
        "encoder_attention_heads": size.heads,
        "decoder_attention_heads": size.heads,
        "encoder_ffn_dim": size.d_ff,
        "decoder_ffn_dim": size.d_ff,
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": _POSITIONS,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }
    theirs: Any
    if size.norm == "post":
        theirs = MarianMTModel(transformers.MarianConfig(forced_eos_token_id=EOS, **settings))
    else:
        theirs = M2M100ForConditionalGeneration(transformers.M2M100Config(**settings))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
        _fill(theirs, model)
    return theirs.eval()


def _fill(theirs: Any, model: Transformer) -> None:
    theirs.model.shared.weight.copy_(model.embedding.weight)
    for stack, positions, norm in (
        (theirs.model.encoder, model.source_positions, model.encoder_norm),
        (theirs.model.decoder, model.target_positions, model.decoder_norm),
    ):
        if norm is None:
            stack.embed_positions.weight.copy_(positions(0, _POSITIONS))
        else:
            first = PAD + 1  # M2M100 counts positions from there on.
            stack.embed_positions.weights[first : first + _POSITIONS] = positions(0, _POSITIONS)
            _copy(stack.layer_norm, norm)
    for layer, ours in zip(theirs.model.encoder.layers, model.encoder, strict=True):
        assert isinstance(ours, EncoderLayer)
        _fill_attention(layer.self_attn, layer.self_attn_layer_norm, ours.self_attention, ours.round_attention)
        _fill_feed_forward(layer, ours.feed_forward, ours.round_feed_forward)
    for layer, ours in zip(theirs.model.decoder.layers, model.decoder, strict=True):
        assert isinstance(ours, DecoderLayer)
        _fill_attention(layer.self_attn, layer.self_attn_layer_norm, ours.self_attention, ours.round_self_attention)
        _fill_attention(layer.encoder_attn, layer.encoder_attn_layer_norm, ours.cross_attention, ours.round_cross_attention)
        _fill_feed_forward(layer, ours.feed_forward, ours.round_feed_forward)


def _fill_attention(theirs: Any, norm: nn.LayerNorm, attention: MultiHeadAttention, around: Residual) -> None:
    for name, ours in (("q", attention.query), ("k", attention.key), ("v", attention.value), ("out", attention.output)):
        getattr(theirs, f"{name}_proj").weight.copy_(ours.weight)
    _copy(norm, around.norm)


def _fill_feed_forward(theirs: Any, network: FeedForward, around: Residual) -> None:
    _copy(theirs.fc1, network.inner)
    _copy(theirs.fc2, network.outer)
    _copy(theirs.final_layer_norm, around.norm)


def _copy(theirs: nn.Linear | nn.LayerNorm, ours: nn.Linear | nn.LayerNorm) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)
