"""Hugging Face's Marian in a plain PyTorch loop: ``python -m peers.hugging_face FOLDER``; a Transformer of ours as a model of theirs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from peers import plain_torch
from peers.job import Job
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD, Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.ctranslate2_export import unsupported
from transformer_core.decoding.translator import batches_of
from transformer_core.models.attention import MultiHeadAttention
from transformer_core.models.directory import SUBWORD, load_model
from transformer_core.models.layers import DecoderLayer, EncoderLayer
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.training.loader import Batch

_TRAINED_POSITIONS, _DECODED_POSITIONS = 256, 512


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


class Marian(nn.Module):
    """A new model; the remaining difference to our architecture are biases on the attentions' projections."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        config = transformers.MarianConfig(
            **_settings(job, job.vocab_size, _TRAINED_POSITIONS),
            dropout=job.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            attn_implementation=job.attention,  # type: ignore[call-arg]  # A setting of every model.
        )
        self.model = transformers.MarianMTModel(config)

    def forward(self, batch: Batch) -> Tensor:
        """Map a batch to logits (B, T, V)."""
        mask = batch.source_mask.long()
        logits: Tensor = self.model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.shifted, use_cache=False).logits
        return logits


def decoder(directory: Path, search: Search, device: torch.device) -> Callable[[Sequence[list[int]], int], list[tuple[str, int]]]:
    """Return a function that translates token ids with `generate`, in bf16 and in the batches of our own translator."""
    own = load_model(directory)[0]
    if (
        not isinstance(own, Transformer)
        or unsupported(own.size)
        or own.size.tied != "all"
        or own.size.d_k * own.size.heads != own.size.d_model
    ):
        raise SystemExit("Hugging Face's classes cannot hold this model: name the other --engines.")
    model = converted(own).to(device, torch.bfloat16)
    subword = Subword.load(directory / SUBWORD)

    def translate(sources: Sequence[list[int]], batch_tokens: int) -> list[tuple[str, int]]:
        results = [("", 0)] * len(sources)
        for numbers in batches_of([len(source) for source in sources], batch_tokens):
            rows = [torch.tensor(sources[number]) for number in numbers]
            tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD).to(device)
            outputs = model.generate(
                input_ids=tokens,
                attention_mask=(tokens != PAD).long(),
                num_beams=search.beam,
                length_penalty=search.alpha,
                max_new_tokens=tokens.shape[1] - 1 + search.max_extra,
            )
            for number, output in zip(numbers, outputs[:, 1:].tolist(), strict=True):
                length = output.index(EOS) + 1 if EOS in output else len(output)
                results[number] = (subword.decode(output[:length]), length)
        return results

    return translate


def converted(model: Transformer) -> Any:
    """Return the same model in float32, ready to generate: Marian for a post-norm model, M2M100 for a pre-norm one.

    Their additional parameters, the biases of attention, are zero.
    """
    settings = _settings(model.size, len(model.output_weight), _DECODED_POSITIONS)
    theirs: Any
    if model.size.norm == "post":
        theirs = transformers.MarianMTModel(transformers.MarianConfig(forced_eos_token_id=EOS, **settings))
    else:
        theirs = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**settings))
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
    plain_torch.run(Marian)
