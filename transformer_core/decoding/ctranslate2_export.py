"""Export of a Transformer to a model directory of CTranslate2, an engine for inference (https://opennmt.net/CTranslate2)."""

import shutil
from collections.abc import Iterator, Set
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.config import PAPER_SEARCH
from transformer_core.corpus.text import write_lines
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.corpus.tokens.subword import BOS, EOS, UNK, Subword
from transformer_core.decoding.translator import load_subword, targets_of
from transformer_core.errors import configuration_error
from transformer_core.files import new_directory, write_json
from transformer_core.models.attention import MultiHeadAttention
from transformer_core.models.directory import EXPORTED_WEIGHTS, SUBWORD, load_model
from transformer_core.models.layers import DecoderLayer, EncoderLayer, Residual
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.sizes import ModelSize
from transformer_core.tasks import tag_of

# Length of the table of encodings of a model without a largest length. (Without a table CTranslate2 adds tensor2tensor's sinusoids, which
# differ from the paper's.)
TABLE_POSITIONS = 4096

_MAP = "vmap.txt"  # CTranslate2's vocabulary map: the subwords that a translation may have, for each of its source.
# The model's own search (`ModelConfig.decode`) as options of `translate_batch`, for those who translate without this package.
_SEARCH = "search.json"
_PREFIXES = "source_prefixes.json"  # Of a model of several directions the pieces before those of a source, by target.
_FILES = {EXPORTED_WEIGHTS, "config.json", "shared_vocabulary.json", SUBWORD, _SEARCH, _PREFIXES, _MAP}


def unsupported(size: ModelSize) -> str:
    """Return why CTranslate2 does not support a model of these sizes; empty if it does."""
    if not isinstance(size, TransformerSize) or size.architecture != TransformerSize.architecture:
        return f"CTranslate2 has no {size.architecture} model"
    exported = size.keys_that_are("exported")
    for key in fields(size):
        value = getattr(size, key.name)
        if key.name not in exported and value != key.default:
            return f"its {key.name} ({value}) cannot be converted to CTranslate2"
    return ""


def positions_of(size: TransformerSize) -> int:
    """Return the largest number of tokens on either side of an exported model."""
    return size.most_positions if size.positions == "learned" else TABLE_POSITIONS


def export_model(source: Path, out: Path) -> None:
    """Write the model of a directory as one of CTranslate2, atomically.

    That has float32 weights, settings, vocabulary, subword model, search, and the shortlist if there is one. CTranslate2 adds a source's
    end token, so its input is the pieces of a text without it. An earlier export is replaced. Raises `UserError`: see `load_model` and
    `load_subword`; exit code 78 if CTranslate2 does not support the model, or if `out` exists and is no earlier export.
    """
    model, config = load_model(source)
    if reason := unsupported(config.model):
        raise configuration_error(f"{source}: {reason}")
    assert isinstance(model, Transformer)
    subword = load_subword(source, config)
    spec = _specification(model, subword)
    out = out.resolve()
    check_free(out, EXPORTED_WEIGHTS, _FILES)
    spec.validate()
    spec.optimize()  # A shared matrix is written once.
    with new_directory(out) as temporary:
        spec.save(str(temporary))
        shutil.copyfile(source / SUBWORD, temporary / SUBWORD)
        search = config.decode or PAPER_SEARCH
        tags = {target: [subword.pieces[token] for token in subword.encode(tag_of(target))[:-1]] for target in targets_of(config, subword)}
        write_json(temporary / _SEARCH, {"beam_size": search.beam, "length_penalty": search.alpha})
        if tags:
            write_json(temporary / _PREFIXES, tags)
        if (source / SHORTLIST).is_file():
            write_lines(temporary / _MAP, _vocabulary_map(Shortlist.load(source / SHORTLIST, subword.vocab_size), subword.pieces))


def _vocabulary_map(shortlist: Shortlist, pieces: list[str]) -> Iterator[str]:
    """Yield the lines of the vocabulary map: source subword, tab, target subwords; first, without a source, those of every sentence."""
    yield "\t" + " ".join(pieces[token] for token in shortlist.frequent)
    for token, piece in enumerate(pieces):
        targets = shortlist.targets[shortlist.starts[token] : shortlist.starts[token + 1]]
        yield f"{piece}\t" + " ".join(pieces[target] for target in np.union1d(targets, token))


def check_free(out: Path, marker: str, files: Set[str]) -> None:
    """Raise `UserError` (78) if `out` exists and is no export that may be replaced: a directory of these files, `marker` among them."""
    if out.is_dir():
        names = {path.name for path in out.iterdir()}
        if not names or (marker in names and names <= files):
            return
    if out.exists():
        raise configuration_error(f"{out}: exists and is no exported model", "Name another directory or remove it.")


def _specification(model: Transformer, subword: Subword) -> Any:
    """Return CTranslate2's specification of a model (a TransformerSpec), with the model's weights."""
    from ctranslate2 import specs  # type: ignore[import-untyped]

    size = model.size
    activation = specs.common_spec.Activation[size.activation.upper()]
    width = max(size.d_k, size.d_v)  # CTranslate2 has one size for keys and values: the smaller ones are padded with zeros.
    settings = {"pre_norm": size.norm == "pre", "head_dim": width, "activation": activation}
    encoder, decoder = size.depths
    stacks = specs.TransformerEncoderSpec(encoder, size.heads, **settings), specs.TransformerDecoderSpec(decoder, size.heads, **settings)
    spec = specs.TransformerSpec(*stacks)
    _fill_embeddings(spec, model)
    for theirs, ours in zip([*spec.encoder.layer, *spec.decoder.layer], [*model.encoder, *model.decoder], strict=True):
        _fill_layer(theirs, ours, width)
    spec.register_source_vocabulary(subword.pieces)
    spec.register_target_vocabulary(subword.pieces)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (subword.pieces[token] for token in (UNK, BOS, EOS))
    spec.config.decoder_start_token = subword.pieces[BOS]
    spec.config.add_source_eos = True
    return spec


def _fill_embeddings(spec: Any, model: Transformer) -> None:
    """Fill in what stands before and behind the layers."""
    spec.encoder.embeddings[0].weight = _plain(model.embedding.weight)
    spec.decoder.embeddings.weight = _plain((model.target_embedding or model.embedding).weight)
    spec.decoder.projection.weight = _plain(model.output_weight)
    if model.output_bias is not None:
        spec.decoder.projection.bias = _plain(model.output_bias)
    sides = (spec.encoder, model.source_positions, model.encoder_norm), (spec.decoder, model.target_positions, model.decoder_norm)
    count = positions_of(model.size)
    for side, positions, norm in sides:
        side.position_encodings.encodings = torch.zeros(count, model.d_model) if positions is None else _plain(positions(0, count))
        if norm is not None:
            _fill_norm(side.layer_norm, norm)


def _fill_layer(spec: Any, layer: nn.Module, width: int) -> None:
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    around = layer.round_self_attention if isinstance(layer, DecoderLayer) else layer.round_attention
    _fill_attention(spec.self_attention, layer.self_attention, around, width)
    if isinstance(layer, DecoderLayer):
        _fill_attention(spec.attention, layer.cross_attention, layer.round_cross_attention, width)
    for theirs, ours in ((spec.ffn.linear_0, layer.feed_forward.inner), (spec.ffn.linear_1, layer.feed_forward.outer)):
        theirs.weight, theirs.bias = _plain(ours.weight), _plain(ours.bias)
    _fill_norm(spec.ffn.layer_norm, layer.round_feed_forward.norm)


def _fill_attention(spec: Any, attention: MultiHeadAttention, around: Residual, width: int) -> None:
    """Fill in the projections: for self-attention one matrix of all three; else the query's, and one matrix of key and value."""
    d_k = attention.query.out_features // attention.heads
    parts = [attention.query, attention.key, attention.value]
    for theirs, ours in zip(spec.linear, [parts] if len(spec.linear) == 2 else [parts[:1], parts[1:]], strict=False):
        theirs.weight = torch.cat([_widened(part.weight, attention.heads, width) for part in ours])
        if attention.output.bias is not None:
            theirs.bias = torch.cat([_widened(part.bias[:, None], attention.heads, width).flatten() for part in ours])
    spec.linear[-1].weight = _widened(attention.output.weight.T, attention.heads, width).T
    if attention.output.bias is not None:
        spec.linear[-1].bias = _plain(attention.output.bias)
    spec.queries_scale = d_k**-0.5
    _fill_norm(spec.layer_norm, around.norm)


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _plain(norm.weight), _plain(norm.bias)


def _widened(weight: Tensor, heads: int, width: int) -> Tensor:
    """Pad each head's rows with zeros: (H*d, D) to (H*width, D)."""
    by_head = _plain(weight).unflatten(0, (heads, -1))
    return functional.pad(by_head, (0, 0, 0, width - by_head.shape[1])).flatten(0, 1)


def _plain(parameter: Tensor) -> Tensor:
    return parameter.detach().cpu().float()
