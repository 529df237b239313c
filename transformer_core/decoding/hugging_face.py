"""Marian models of Hugging Face's transformers: a Transformer exported as one, and one, such as OPUS-MT's, imported as a model directory.

Theirs has all sines of the positions before all cosines, and ours interleaves them. So the axis of d_model is reordered in all weights,
which changes no result. The parts of a head are not on this axis.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from transformer_core.config import PAPER_SEARCH
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD, SPACE_MARK, SPECIAL, UNK, Subword, is_tag, two_sided
from transformer_core.decoding.ctranslate2_export import check_free
from transformer_core.decoding.translator import load_subword
from transformer_core.errors import UserError, configuration_error, first_line
from transformer_core.files import new_directory, read_json, write_json
from transformer_core.models import directory
from transformer_core.models.architectures import build
from transformer_core.models.directory import CONFIG, MARIAN_SUBWORD, WEIGHTS, ModelConfig, load_model, read_weights, save_model
from transformer_core.presets import TransformerSize
from transformer_core.schema import Section, check_document
from transformer_core.sizes import ModelSize

_MISSING = "Name the folder of a Marian model of Hugging Face's transformers."
_POSITIONS = 512  # As OPUS-MT's models have; transformers computes that many encodings when it loads a model.
_FILES = {CONFIG, WEIGHTS, MARIAN_SUBWORD, "target.spm", "vocab.json", "generation_config.json", "tokenizer_config.json"}
_TOKENS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
# Their names of our sizes.
_SIZES = {
    **{name: (name,) for name in ("d_model", "encoder_layers", "decoder_layers", "dropout", "attention_dropout")},
    "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "relu_dropout": ("activation_dropout",),
    "activation": ("activation_function",),
}
_NEVER = -1000.0  # The bias of a token that no output has; its probability is 0 in any precision.
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_PARTS = {
    **{f"self_attention.{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
    **{f"cross_attention.{ours}": f"encoder_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "round_attention.norm": "self_attn_layer_norm",
    "round_self_attention.norm": "self_attn_layer_norm",
    "round_cross_attention.norm": "encoder_attn_layer_norm",
    "round_feed_forward.norm": "final_layer_norm",
}
# A matrix that several share has one of these names, which depends on the version that wrote the file.
_OUTER = {
    "embedding.weight": ("model.shared.weight", "model.encoder.embed_tokens.weight", "lm_head.weight"),
    "target_embedding.weight": ("model.decoder.embed_tokens.weight", "model.shared.weight", "lm_head.weight"),
    "projection.weight": ("lm_head.weight",),
    "output_bias": ("final_logits_bias",),
}
# Weights without an axis of d_model, and those whose first axis it is; it is the last one of all others.
_INNER = ("query.bias", "key.bias", "value.bias", "inner.bias", "output_bias")
_FIRST = (".norm.weight", ".norm.bias", ".outer.weight", ".outer.bias", ".output.weight", ".output.bias")


class _Marian(Section, strict=False, extra="ignore"):
    """What is read of their config.json, with the defaults of transformers, which writes no others."""

    model_type: Literal["marian"]
    vocab_size: int = 58101
    decoder_vocab_size: int | None = None
    max_position_embeddings: int = 1024
    encoder_layers: int = 12
    decoder_layers: int = 12
    encoder_ffn_dim: int = 4096
    decoder_ffn_dim: int = 4096
    encoder_attention_heads: int = 16
    decoder_attention_heads: int = 16
    activation_function: Literal["relu", "swish", "silu", "gelu"] = "gelu"
    d_model: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    decoder_start_token_id: int = 58100
    scale_embedding: bool = False
    pad_token_id: int = 58100
    eos_token_id: int = 0
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True

    def size(self) -> TransformerSize:
        """Return the same sizes here, with all biases."""
        settings: dict[str, Any] = {ours: getattr(self, names[0]) for ours, names in _SIZES.items()}
        if settings["activation"] == "silu":
            settings["activation"] = "swish"
        settings["layers"] = settings.pop("encoder_layers")
        if self.decoder_layers == self.encoder_layers:
            del settings["decoder_layers"]
        width = self.d_model // self.encoder_attention_heads
        settings["tied"] = "none" if not self.tie_word_embeddings else "all" if self.share_encoder_decoder_embeddings else "decoder"
        return TransformerSize(**settings, d_k=width, d_v=width, attention_bias=True, output_bias=True)

    def unsupported(self) -> str:
        """Return what no model here has; empty if there is nothing."""
        if not self.scale_embedding:
            return "its embeddings are not scaled (scale_embedding)"
        if self.encoder_attention_heads != self.decoder_attention_heads or self.encoder_ffn_dim != self.decoder_ffn_dim:
            return "its encoder has other widths than its decoder"
        if self.decoder_vocab_size not in (None, self.vocab_size):
            return "it has two vocabularies"
        return ""


def unsupported(size: ModelSize) -> str:
    """Return why MarianMTModel cannot hold a model of these sizes; empty if it can."""
    if not isinstance(size, TransformerSize):
        return f"transformers has no {size.architecture} model for translation"
    for key, held in (("architecture", "transformer"), ("norm", "post"), ("positions", "sinusoidal")):
        if getattr(size, key) != held:
            return f"its {key} ({getattr(size, key)}) is not that of MarianMTModel ({held})"
    if (size.d_k, size.d_v) != (size.d_model / size.heads,) * 2:
        return f"its d_k and d_v ({size.d_k}, {size.d_v}) are not d_model / heads, as those of MarianMTModel"
    return ""


def config_of(size: TransformerSize, vocab_size: int) -> dict[str, Any]:
    """Return the content of their config.json for a model of these sizes."""
    kind = {"architectures": ["MarianMTModel"], "model_type": "marian", "dtype": "float32", "scale_embedding": True}
    sizes = {"vocab_size": vocab_size, "decoder_vocab_size": vocab_size, "max_position_embeddings": _POSITIONS}
    depths = dict(zip(("encoder_layers", "decoder_layers"), size.depths, strict=True))
    sizes |= {name: depths.get(ours, getattr(size, ours)) for ours, names in _SIZES.items() for name in names}
    ties = {"share_encoder_decoder_embeddings": size.tied == "all", "tie_word_embeddings": size.tied != "none"}
    return {**kind, **sizes, **ties, **_TOKENS}


def export_model(source: Path, out: Path) -> None:
    """Write the model of a directory as a MarianMTModel with its MarianTokenizer, atomically; an earlier export is replaced.

    Raises `UserError`: see `load_model` and `load_subword`; 78 if MarianMTModel cannot hold the model, or `out` has something else.
    """
    model, config = load_model(source)
    if reason := unsupported(config.model):
        raise configuration_error(f"{source}: {reason}")
    size, subword = config.model, load_subword(source, config)
    assert isinstance(size, TransformerSize)
    whole = build(replace(size, attention_bias=True, output_bias=True), subword.vocab_size)  # New biases are zeros.
    whole.load_state_dict(model.state_dict(), strict=False)
    order = _order(size.d_model)
    weights = {_names(name, size)[0]: _reordered(name, weight, order) for name, weight in whole.state_dict().items()}
    weights["final_logits_bias"] = weights["final_logits_bias"][None]
    out, search = out.resolve(), config.decode or PAPER_SEARCH
    check_free(out, MARIAN_SUBWORD, _FILES)
    with new_directory(out) as temporary:
        save_file({name: weight.contiguous() for name, weight in weights.items()}, temporary / WEIGHTS, metadata={"format": "pt"})
        write_json(temporary / CONFIG, config_of(size, subword.vocab_size))
        # The end of a search by CTranslate2 and by `Search.patience`, and the tokens that no output has.
        ends = {"num_beams": search.beam, "length_penalty": search.alpha, "early_stopping": True, "max_length": _POSITIONS}
        never = {"suppress_tokens": [PAD, UNK, BOS], "begin_suppress_tokens": [EOS], "forced_eos_token_id": EOS}
        write_json(temporary / "generation_config.json", {**ends, **never, **_TOKENS})
        languages = {"source_lang": config.source, "target_lang": config.target, "model_max_length": _POSITIONS}
        named = {"pad_token": SPECIAL[PAD], "unk_token": SPECIAL[UNK], "eos_token": SPECIAL[EOS], "clean_up_tokenization_spaces": False}
        write_json(temporary / "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer", **languages, **named})
        pieces = [piece.removeprefix(SPACE_MARK) if is_tag(piece) else piece for piece in subword.pieces]
        write_json(temporary / "vocab.json", {piece: token for token, piece in enumerate(pieces)})
        for name, side in ((MARIAN_SUBWORD, subword), ("target.spm", subword.of_target)):
            (temporary / name).write_bytes(side.processor.serialized_model_proto())


def import_model(folder: Path, out: Path, source: str | None = None, target: str | None = None) -> ModelConfig:
    """Write a directory of MarianMTModel and MarianTokenizer as a model directory, atomically; return its config.

    Its token ids have another order, in which ours have their places. `source` and `target` are the languages if tokenizer_config.json does
    not name them. Raises `UserError`: 65 if a file is missing or damaged, 78 if the model has what no model here has.
    """
    file = folder / CONFIG
    document = read_json(file, "", _MISSING)
    marian = check_document(_Marian, document, file, "Name the folder of a Marian model, with config.json of transformers.")
    if reason := marian.unsupported():
        raise configuration_error(f"{file}: {reason}")
    named, generation = (
        read_json(folder / name, "") if (folder / name).is_file() else {} for name in ("tokenizer_config.json", "generation_config.json")
    )
    languages = source or named.get("source_lang"), target or named.get("target_lang")
    if not all(languages):
        raise configuration_error(f"{folder}: its languages are not in tokenizer_config.json", "Name them: --source, --target.")
    rows, model = _vocabulary(folder, marian)
    weights = _weights(folder, marian.size(), rows)
    if marian.decoder_start_token_id in (marian.pad_token_id, marian.eos_token_id, rows[UNK]):
        weights["output_bias"][BOS] = _NEVER  # Its row is that of another token, and it was none of theirs.
    size = marian.size()
    of_attention = [name for name in weights if name.endswith(tuple(f"attention.{part}.bias" for part in _ATTENTION))]
    for key, names in (("attention_bias", of_attention), ("output_bias", ["output_bias"])):
        if not any(weights[name].any() for name in names):
            size = size.changed({key: False})
            weights = {name: weight for name, weight in weights.items() if name not in names}
    generation = {**document, **generation}
    searched = {"beam": generation.get("num_beams") or 1, "alpha": generation.get("length_penalty", 1.0)}
    with TemporaryDirectory() as temporary:
        spm = Path(temporary) / "spm.model"
        spm.write_bytes(model)
        subword = Subword.load(spm, f"Its parts are those of {folder}.")
        config = ModelConfig(
            model=size,
            vocabulary=directory.Vocabulary(size=subword.vocab_size, hash=subword.hash),
            source=str(languages[0]),
            target=str(languages[1]),
            training=directory.Training(fingerprint="imported", updates=0, target_tokens=0, seconds=0.0),
            longest_source=marian.max_position_embeddings - 1,
            decode=PAPER_SEARCH.model_copy(update={"engine": "ctranslate2", "penalty": "power", **searched}),
        )
        save_model(out, weights, config, spm)
    return config


def _vocabulary(folder: Path, marian: _Marian) -> tuple[list[int], bytes]:
    """Return their token id of each of ours, and the subword model."""
    file, size = folder / "vocab.json", marian.vocab_size
    if (folder / "target_vocab.json").exists():
        raise configuration_error(f"{folder}: it has two vocabularies, vocab.json and target_vocab.json")
    entries: dict[str, int] = read_json(file, "", _MISSING)
    pieces = {token: piece for piece, token in entries.items()}
    if sorted(pieces) != [*range(size)] or "<unk>" not in entries:
        raise UserError(f"{file}: not one piece for each of the {size:,} token ids of {folder / CONFIG}, and <unk>")
    special = [marian.pad_token_id, entries["<unk>"], marian.decoder_start_token_id, marian.eos_token_id]
    others = [token for token in range(size) if token not in special and pieces[token] not in SPECIAL]
    ours = [SPACE_MARK + piece if is_tag(SPACE_MARK + piece) else piece for piece in map(pieces.__getitem__, others)]
    try:
        source, target = ((folder / name).read_bytes() for name in (MARIAN_SUBWORD, "target.spm"))
        return [*special, *others], two_sided(source, target, ours)
    except FileNotFoundError as error:
        raise UserError(f"{error.filename}: no such file", "Copy the model again.") from None
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{folder}: source.spm or target.spm is not a SentencePiece model that fits ({first_line(error)})") from None


def _weights(folder: Path, size: TransformerSize, rows: Sequence[int]) -> dict[str, Tensor]:
    """Return their weights as ours, with their row `rows[token]` for each token. Raises `UserError` (65): a weight is missing or wrong."""
    file = folder / WEIGHTS
    if file.is_file() or not (folder / "pytorch_model.bin").is_file():
        theirs = read_weights(file)
    else:
        file = folder / "pytorch_model.bin"
        try:
            theirs = torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, UnpicklingError, EOFError) as error:
            raise UserError(f"{file}: damaged ({first_line(error)})", "Copy the model again.") from None
    order, model = _order(size.d_model).argsort(), build(size, len(rows))
    theirs.setdefault("final_logits_bias", torch.zeros(1, max(rows) + 1))
    weights = {}
    for name, ours in model.state_dict().items():
        names = _names(name, size)
        found = next((theirs[key] for key in names if key in theirs), torch.empty(0))
        weight = found.float().squeeze(0) if name == "output_bias" else found.float()
        if name in _OUTER and len(weight) > max(rows):
            weight = weight[list(rows)]
        if weight.shape != ours.shape:
            raise UserError(f"{file}: {names[0]} is {tuple(found.shape)}, and {folder / CONFIG} asks for {tuple(ours.shape)}")
        weights[name] = _reordered(name, weight, order).contiguous()
    return weights


def _names(name: str, size: TransformerSize) -> tuple[str, ...]:
    """Return their names of a weight; the first is the one to write."""
    if name in _OUTER:
        return _OUTER[name][name == "embedding.weight" and size.tied != "all" :]
    stack, layer, *part, kind = name.split(".")
    return (f"model.{stack}.layers.{layer}.{_PARTS['.'.join(part)]}.{kind}",)


def _order(d_model: int) -> Tensor:
    """Return which place of our axis of d_model is at each of theirs: the sines, and then the cosines."""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def _reordered(name: str, weight: Tensor, order: Tensor) -> Tensor:
    if name.endswith(_INNER):
        return weight
    return weight.index_select(0 if name.endswith(_FIRST) else -1, order)
