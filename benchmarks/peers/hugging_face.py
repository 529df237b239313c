"""Hugging Face's Marian in a plain PyTorch loop: ``python -m peers.hugging_face FOLDER``; a Transformer of ours as a model of theirs."""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.marian.modeling_marian import MarianMTModel  # Not lazily, so that it is loaded before memory is read.

from peers import plain_torch
from peers.job import Job, Memory, Training, Updates, train_and_report
from transformer_core.corpus.tokens.binary import BinarizedSplit, open_split
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD
from transformer_core.decoding.ctranslate2_export import unsupported
from transformer_core.models.attention import MultiHeadAttention
from transformer_core.models.layers import DecoderLayer, EncoderLayer
from transformer_core.models.precision import choose_kernels, has_fast_bf16
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import TransformerSize
from transformer_core.training.loader import Batch

_TRAINED_POSITIONS, _DECODED_POSITIONS = 256, 512


def main() -> None:
    """Train for warm-up, train again with the clock running, report."""
    folder = Path(sys.argv[1])
    job = Job.read(folder)
    split = open_split(folder / "train")
    torch.set_num_threads(job.threads)
    device = torch.device("cpu")
    choose_kernels(device)
    memory = Memory()
    torch.manual_seed(job.seed)
    model = new_model(job)
    facts = {
        "precision": "bf16" if has_fast_bf16(device) else "float32",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    train_and_report(folder, job, model, memory, lambda updates: train(model, split, updates, device), facts)


def _settings(size: Job | TransformerSize, vocab_size: int, positions: int) -> dict[str, Any]:
    """Return the settings of our architecture that Marian and M2M100 share."""
    encoder, decoder = size.depths if isinstance(size, TransformerSize) else (size.layers, size.layers)
    return {
        "vocab_size": vocab_size,
        "d_model": size.d_model,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        "encoder_attention_heads": size.heads,
        "decoder_attention_heads": size.heads,
        "encoder_ffn_dim": size.d_ff,
        "decoder_ffn_dim": size.d_ff,
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": positions,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }


def new_model(job: Job) -> MarianMTModel:
    """Return a new model; the remaining difference to our architecture are biases on the attentions' projections."""
    config = transformers.MarianConfig(
        **_settings(job, job.vocab_size, _TRAINED_POSITIONS),
        dropout=job.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        attn_implementation=job.attention,  # type: ignore[call-arg]  # A setting of every model.
    )
    return MarianMTModel(config)


def train(model: MarianMTModel, split: BinarizedSplit, updates: Updates, device: torch.device) -> Training:
    """Train on the pairs of each update."""

    def logits(batch: Batch) -> Tensor:
        mask = batch.source_mask.long()
        found: Tensor = model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.shifted, use_cache=False).logits
        return found

    return plain_torch.train(model, logits, split, updates, device)


def fits(model: TranslationModel) -> bool:
    """Return whether these classes can hold a model: one that CTranslate2 supports, with one matrix, keys and values of d_model / heads."""
    if not isinstance(model, Transformer) or unsupported(model.size):
        return False
    size = model.size
    return size.tied == "all" and size.d_k == size.d_v == size.d_model // size.heads


def converted(model: Transformer) -> Any:
    """Return the same model in float32, ready to generate: Marian for a post-norm model, M2M100 for a pre-norm one.

    Their additional parameters, the biases of attention, are zero.
    """
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100ForConditionalGeneration

    settings = _settings(model.size, len(model.output_weight), _DECODED_POSITIONS)
    theirs: Any
    if model.size.norm == "post":
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
            stack.embed_positions.weight.copy_(positions(0, _DECODED_POSITIONS))
        else:
            first = PAD + 1  # M2M100 counts positions from there on.
            stack.embed_positions.weights[first : first + _DECODED_POSITIONS] = positions(0, _DECODED_POSITIONS)
            _copy(stack.layer_norm, norm)
    for layer, ours in zip(theirs.model.encoder.layers, model.encoder, strict=True):
        assert isinstance(ours, EncoderLayer)
        _fill_attention(layer.self_attn, layer.self_attn_layer_norm, ours.self_attention, ours.round_attention.norm)
        _fill_feed_forward(layer, ours)
    for layer, ours in zip(theirs.model.decoder.layers, model.decoder, strict=True):
        assert isinstance(ours, DecoderLayer)
        _fill_attention(layer.self_attn, layer.self_attn_layer_norm, ours.self_attention, ours.round_self_attention.norm)
        _fill_attention(layer.encoder_attn, layer.encoder_attn_layer_norm, ours.cross_attention, ours.round_cross_attention.norm)
        _fill_feed_forward(layer, ours)


def _fill_attention(theirs: Any, their_norm: nn.LayerNorm, attention: MultiHeadAttention, norm: nn.LayerNorm) -> None:
    for name, ours in (("q", attention.query), ("k", attention.key), ("v", attention.value), ("out", attention.output)):
        getattr(theirs, f"{name}_proj").weight.copy_(ours.weight)
    _copy(their_norm, norm)


def _fill_feed_forward(theirs: Any, ours: EncoderLayer | DecoderLayer) -> None:
    _copy(theirs.fc1, ours.feed_forward.inner)
    _copy(theirs.fc2, ours.feed_forward.outer)
    _copy(theirs.final_layer_norm, ours.round_feed_forward.norm)


def _copy(theirs: nn.Linear | nn.LayerNorm, ours: nn.Linear | nn.LayerNorm) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


if __name__ == "__main__":
    main()
