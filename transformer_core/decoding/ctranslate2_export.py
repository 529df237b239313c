"""Export of a Transformer to a model directory of CTranslate2, an engine for inference (https://opennmt.net/CTranslate2).

The engine's own exports are kept in the user's cache: a model is converted when it is first loaded by that engine, not each time.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.config import PAPER_SEARCH
from transformer_core.corpus.text import write_lines
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.corpus.tokens.subword import BOS, EOS, UNK, Subword
from transformer_core.decoding.translator import load_subword
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import new_directory, read_json, sha256_of, write_json
from transformer_core.models.attention import MultiHeadAttention
from transformer_core.models.directory import CONFIG, EXPORTED_WEIGHTS, SUBWORD, WEIGHTS, load_model
from transformer_core.models.embeddings import LearnedPositions, sinusoidal_positions
from transformer_core.models.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from transformer_core.models.transformer import Transformer
from transformer_core.presets import TransformerSize
from transformer_core.sizes import ModelSize

# Length of the table of encodings of a model without a largest length. (Without a table CTranslate2 adds tensor2tensor's sinusoids, which
# differ from the paper's.)
TABLE_POSITIONS = 4096

# CTranslate2's vocabulary map: the subwords that a translation may have, for each of its source.
_MAP = "vmap.txt"
# The model's own search (`ModelConfig.decode`) as options of `translate_batch`, for those who translate without this package.
_SEARCH = "search.json"
_FILES = {EXPORTED_WEIGHTS, "config.json", "shared_vocabulary.json", SUBWORD, _SEARCH, _MAP}
# To be raised with every change of what `export_model` writes.
_FORMAT = 2
# Number of exports that are kept; that of a base model takes 260 MB.
_KEPT = 8
_LOCK, _SUMS = ".lock", "sums.json"


def unsupported(size: ModelSize) -> str:
    """Return why CTranslate2 does not support a model of these sizes; empty if it does."""
    if not isinstance(size, TransformerSize):
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
    _check_free(out)
    spec.validate()
    spec.optimize()  # A shared matrix is written once.
    with new_directory(out) as temporary:
        spec.save(str(temporary))
        shutil.copyfile(source / SUBWORD, temporary / SUBWORD)
        search = config.decode or PAPER_SEARCH
        write_json(temporary / _SEARCH, {"beam_size": search.beam, "length_penalty": search.alpha})
        if (source / SHORTLIST).is_file():
            write_lines(temporary / _MAP, _vocabulary_map(Shortlist.load(source / SHORTLIST, subword.vocab_size), subword.pieces))


def _vocabulary_map(shortlist: Shortlist, pieces: list[str]) -> Iterator[str]:
    """Yield the lines of the vocabulary map: source subword, tab, target subwords; first, without a source, those of every sentence."""
    yield "\t" + " ".join(pieces[token] for token in shortlist.frequent)
    for token, piece in enumerate(pieces):
        targets = shortlist.targets[shortlist.starts[token] : shortlist.starts[token + 1]]
        if len(targets):
            yield f"{piece}\t" + " ".join(pieces[target] for target in targets)


def _check_free(out: Path) -> None:
    if out.is_dir():
        names = {path.name for path in out.iterdir()}
        if not names or (EXPORTED_WEIGHTS in names and names <= _FILES):
            return
    if out.exists():
        raise configuration_error(f"{out}: exists and is no exported model", "Name another directory or remove it.")


@contextmanager
def cached_export(directory: Path) -> Iterator[Path]:
    """Yield the export of a model directory, to be loaded within the block; it is made if there is none or if it is damaged.

    It is not in the model directory, which is an output of DVC, is copied when the model is published, and may be read-only. It is in
    `$XDG_CACHE_HOME` or `~/.cache`, in `transformer-pipeline/ctranslate2`, under a hash of all that it is made of: the files of the model,
    the format and CTranslate2's version. So a changed model has another export, and copies of a model share one. The last used are kept. A
    lock lets one process at a time make, load or remove exports. Where nothing can be kept, the export is made in a temporary folder.
    Raises `UserError`: see `export_model`.
    """
    with ExitStack() as stack:
        try:
            export = _kept(directory, stack)
        except OSError:  # No home, no space, no permission, no locks. An error in the model's own files comes again below.
            export = Path(stack.enter_context(TemporaryDirectory())) / "model"
            export_model(directory, export)
        yield export


def _kept(directory: Path, stack: ExitStack) -> Path:
    """Return the whole export of a model in the cache, which stays locked until the stack is closed."""
    cache = _cache()
    cache.mkdir(parents=True, exist_ok=True)
    fcntl.flock(stack.enter_context((cache / _LOCK).open("w")), fcntl.LOCK_EX)
    export = cache / _key(directory)
    if not _is_whole(export):
        with new_directory(export) as temporary:
            export_model(directory, temporary)
            write_json(temporary / _SUMS, _sums(temporary))
    os.utime(export)
    for unused in sorted(cache.glob("[0-9a-f]*"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(unused)
    return export


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.environ.get("HOME", ""), ".cache")
    if not base.is_absolute():
        raise FileNotFoundError("no home directory")
    return base / "transformer-pipeline" / "ctranslate2"


def _key(directory: Path) -> str:
    import ctranslate2  # type: ignore[import-untyped]

    names = [WEIGHTS, CONFIG, SUBWORD, *([SHORTLIST] if (directory / SHORTLIST).is_file() else [])]
    parts = [str(_FORMAT), ctranslate2.__version__, *(sha256_of(directory / name) for name in names)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _is_whole(export: Path) -> bool:
    """Return whether the files of an export are those that were written."""
    try:
        return bool(read_json(export / _SUMS) == _sums(export))
    except (FileNotFoundError, UserError):
        return False


def _sums(export: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted(export.iterdir()) if path.name != _SUMS}


def _specification(model: Transformer, subword: Subword) -> Any:
    """Return CTranslate2's specification of a model (a TransformerSpec), with the model's weights."""
    from ctranslate2 import specs

    size = model.size
    settings = {"pre_norm": size.norm == "pre", "head_dim": _head_width(model)}
    encoder, decoder = size.depths
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(encoder, size.heads, **settings), specs.TransformerDecoderSpec(decoder, size.heads, **settings)
    )
    _fill_encoder(spec.encoder, model)
    _fill_decoder(spec.decoder, model)
    spec.register_source_vocabulary(subword.pieces)
    spec.register_target_vocabulary(subword.pieces)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (subword.pieces[token] for token in (UNK, BOS, EOS))
    spec.config.decoder_start_token = subword.pieces[BOS]
    spec.config.add_source_eos = True
    return spec


def _fill_encoder(spec: Any, model: Transformer) -> None:
    spec.embeddings[0].weight = _plain(model.embedding.weight)
    spec.position_encodings.encodings = _encodings(model.source_positions, model.d_model)
    if model.encoder_norm is not None:
        _fill_norm(spec.layer_norm, model.encoder_norm)
    for theirs, ours in zip(spec.layer, model.encoder, strict=True):
        assert isinstance(ours, EncoderLayer)
        _fill_attention(theirs.self_attention, ours.self_attention, ours.round_attention, _head_width(model))
        _fill_feed_forward(theirs.ffn, ours.feed_forward, ours.round_feed_forward)


def _fill_decoder(spec: Any, model: Transformer) -> None:
    spec.embeddings.weight = _plain((model.target_embedding or model.embedding).weight)
    spec.projection.weight = _plain(model.output_weight)
    spec.position_encodings.encodings = _encodings(model.target_positions, model.d_model)
    if model.decoder_norm is not None:
        _fill_norm(spec.layer_norm, model.decoder_norm)
    for theirs, ours in zip(spec.layer, model.decoder, strict=True):
        assert isinstance(ours, DecoderLayer)
        _fill_attention(theirs.self_attention, ours.self_attention, ours.round_self_attention, _head_width(model))
        _fill_attention(theirs.attention, ours.cross_attention, ours.round_cross_attention, _head_width(model))
        _fill_feed_forward(theirs.ffn, ours.feed_forward, ours.round_feed_forward)


def _fill_attention(spec: Any, attention: MultiHeadAttention, around: Residual, width: int) -> None:
    """Fill in the projections: for self-attention one matrix of all three; else the query's, and one matrix of key and value."""
    d_k = attention.query.out_features // attention.heads
    query, key, value = (_widened(part.weight, attention.heads, width) for part in (attention.query, attention.key, attention.value))
    if len(spec.linear) == 2:
        spec.linear[0].weight = torch.cat((query, key, value))
    else:
        spec.linear[0].weight, spec.linear[1].weight = query, torch.cat((key, value))
    spec.linear[-1].weight = _widened(attention.output.weight.T, attention.heads, width).T
    spec.queries_scale = d_k**-0.5
    _fill_norm(spec.layer_norm, around.norm)


def _fill_feed_forward(spec: Any, network: FeedForward, around: Residual) -> None:
    for theirs, ours in ((spec.linear_0, network.inner), (spec.linear_1, network.outer)):
        theirs.weight, theirs.bias = _plain(ours.weight), _plain(ours.bias)
    _fill_norm(spec.layer_norm, around.norm)


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _plain(norm.weight), _plain(norm.bias)


def _encodings(positions: nn.Module | None, d_model: int) -> Tensor:
    """Return the table of encodings, (positions, D); zeros for a model without positions."""
    if positions is None:
        return torch.zeros(TABLE_POSITIONS, d_model)
    if isinstance(positions, LearnedPositions):
        return _plain(positions.weight)
    return sinusoidal_positions(TABLE_POSITIONS, d_model)


def _head_width(model: Transformer) -> int:
    """Return the common size of keys and values, since CTranslate2 has only one; the smaller is padded with zeros."""
    return max(model.size.d_k, model.size.d_v)


def _widened(weight: Tensor, heads: int, width: int) -> Tensor:
    """Pad each head's rows with zeros: (H*d, D) to (H*width, D)."""
    by_head = _plain(weight).unflatten(0, (heads, -1))
    return functional.pad(by_head, (0, 0, 0, width - by_head.shape[1])).flatten(0, 1)


def _plain(parameter: Tensor) -> Tensor:
    return parameter.detach().cpu().float()
