"""Presets, the sizes of models by name: base and big, all rows of the paper's Table 3, small ones, and baselines."""

from dataclasses import dataclass, fields, replace
from typing import Literal

from transformer_core.config import Model, PositiveInt, Probability
from transformer_core.errors import configuration_error, did_you_mean


@dataclass(frozen=True)
class TransformerSize:
    """Sizes of a Transformer (symbols as in the paper's Table 3) and its variants; the defaults are those of the paper's base model.

    Attributes:
        layers: N, the number of layers of the encoder, and of the decoder.
        encoder_layers: number of layers of the encoder; None for `layers`.
        decoder_layers: number of layers of the decoder; None for `layers`. A shallow decoder behind a deep encoder translates faster (Kasai
            et al. 2021).
        dropout: P_drop, on each sub-layer's output and on embedding plus position (paper 5.4).
        attention_dropout: dropout of attention weights; not in the paper's models.
        relu_dropout: dropout of the feed-forward network's inner activations; not in the paper's models.
        norm: `post` is after each sub-layer's residual, as in the paper; `pre` is before each sub-layer and at the end of both stacks.
        positions: sinusoidal, learned (Table 3, row E), or none, with which the encoder does not see the order of the tokens.
        most_positions: number of learned positions; not used with others.
        tied: the weights that share one matrix: `all` is source, target and projection (paper 3.4), `decoder` target and projection.
        neighbourhood: r, the number of positions visible to self-attention (paper 4); None for all.
    """

    layers: PositiveInt
    d_model: PositiveInt
    d_ff: PositiveInt
    heads: PositiveInt
    d_k: PositiveInt
    d_v: PositiveInt
    dropout: Probability
    attention_dropout: Probability = 0.0
    relu_dropout: Probability = 0.0
    norm: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    most_positions: PositiveInt = 1024
    tied: Literal["all", "decoder", "none"] = "all"
    neighbourhood: PositiveInt | None = None
    encoder_layers: PositiveInt | None = None
    decoder_layers: PositiveInt | None = None
    architecture: Literal["transformer"] = "transformer"

    @property
    def depths(self) -> tuple[int, int]:
        """Numbers of layers of encoder and decoder."""
        return self.encoder_layers or self.layers, self.decoder_layers or self.layers


@dataclass(frozen=True)
class RecurrentSize:
    """Sizes of a recurrent encoder-decoder: the sequence-to-sequence models before the Transformer.

    A `decoder` that is named after a paper fixes `cell`, `attention` and `bidirectional` (PAPER_DECODERS).

    Attributes:
        layers: number of recurrent layers of the encoder, and of the decoder.
        d_model: width of embedding, encoder output and decoder state; each direction of a bidirectional encoder has half of it.
        dropout: dropout between layers, on embeddings and before the projection.
        cell: LSTM (Hochreiter and Schmidhuber 1997) or GRU (Cho et al. 2014).
        attention: `none` passes only a fixed vector (Sutskever et al. 2014); `additive` (Bahdanau et al. 2015) and `dot` (Luong et al.
            2015) score the encoder's states.
        decoder: order of a decoder step.
            simple: the encoder's last states are the initial states. With attention, the previous state selects the context, which both
            the first layer and the output layer read.
            cho: the encoder's last state becomes a context vector c, an input of every step and of a maxout output layer (Cho et al. 2014).
            bahdanau: the initial state comes from the encoder's backward state of the first source token; the previous state selects the
            context; the output layer is maxout (Bahdanau et al. 2015, A.2.2).
            luong: the new state selects the context; both give an attentional state, which is projected and fed to the next step (Luong
            et al. 2015, section 3).
        bidirectional: True if the encoder also reads from right to left.
        reverse_source: True if the encoder reads the source tokens in reverse order, the end token last (Sutskever et al. 2014, section
            3.3).
    """

    layers: PositiveInt
    d_model: PositiveInt
    dropout: Probability
    cell: Literal["lstm", "gru"] = "lstm"
    attention: Literal["none", "additive", "dot"] = "additive"
    decoder: Literal["simple", "cho", "bahdanau", "luong"] = "simple"
    bidirectional: bool = True
    reverse_source: bool = False
    architecture: Literal["recurrent"] = "recurrent"


# The settings that each paper's decoder fixes.
PAPER_DECODERS: dict[str, dict[str, object]] = {
    "cho": {"cell": "gru", "attention": "none", "bidirectional": False},
    "bahdanau": {"cell": "gru", "attention": "additive", "bidirectional": True},
    "luong": {"cell": "lstm", "attention": "dot", "bidirectional": False},
}


@dataclass(frozen=True)
class ConvolutionalSize:
    """Sizes of a convolutional encoder-decoder with attention in each decoder layer (ConvS2S, Gehring et al. 2017).

    Attributes:
        layers: number of gated convolutions of the encoder, and of the decoder.
        d_model: width of the embedding, and number of channels where `convolutions` is None.
        dropout: dropout on embeddings, on the input of each convolution and before the projection.
        kernel: number of positions that a convolution spans, odd; not used where `convolutions` is set.
        convolutions: (channels, kernel, layers) of successive groups of layers, the same in encoder and decoder; None gives every layer
            d_model channels and `kernel`. A linear map is added wherever the width changes (section 3.2).
    """

    layers: PositiveInt
    d_model: PositiveInt
    dropout: Probability
    kernel: PositiveInt = 3
    convolutions: tuple[tuple[PositiveInt, PositiveInt, PositiveInt], ...] | None = None
    architecture: Literal["convolutional"] = "convolutional"


ModelSize = TransformerSize | RecurrentSize | ConvolutionalSize

BASE = TransformerSize(layers=6, d_model=512, d_ff=2048, heads=8, d_k=64, d_v=64, dropout=0.1)
BIG = replace(BASE, d_model=1024, d_ff=4096, heads=16, dropout=0.3)


@dataclass(frozen=True)
class Table3Row:
    """A row of the paper's Table 3: sizes, training settings, and the paper's results.

    Attributes:
        perplexity: perplexity per subword on newstest2013.
        bleu: tokenised BLEU on newstest2013, of one checkpoint (the table does not average).
        millions: number of parameters in millions, where the table gives it.
        vocab_size: V at which our number of parameters rounds to the paper's in all rows that give one; the table does not give V.
    """

    size: TransformerSize
    perplexity: float
    bleu: float
    millions: int | None = None
    label_smoothing: float = 0.1
    updates: int = 100_000
    vocab_size: int = 41_100


TABLE_3 = {
    "base": Table3Row(BASE, 4.92, 25.8, 65),
    "table3/A-h1": Table3Row(replace(BASE, heads=1, d_k=512, d_v=512), 5.29, 24.9),
    "table3/A-h4": Table3Row(replace(BASE, heads=4, d_k=128, d_v=128), 5.00, 25.5),
    "table3/A-h16": Table3Row(replace(BASE, heads=16, d_k=32, d_v=32), 4.91, 25.8),
    "table3/A-h32": Table3Row(replace(BASE, heads=32, d_k=16, d_v=16), 5.01, 25.4),
    "table3/B-dk16": Table3Row(replace(BASE, d_k=16), 5.16, 25.1, 58),
    "table3/B-dk32": Table3Row(replace(BASE, d_k=32), 5.01, 25.4, 60),
    "table3/C-N2": Table3Row(replace(BASE, layers=2), 6.11, 23.7, 36),
    "table3/C-N4": Table3Row(replace(BASE, layers=4), 5.19, 25.3, 50),
    "table3/C-N8": Table3Row(replace(BASE, layers=8), 4.88, 25.5, 80),
    "table3/C-dmodel256": Table3Row(replace(BASE, d_model=256, d_k=32, d_v=32), 5.75, 24.5, 28),
    "table3/C-dmodel1024": Table3Row(replace(BASE, d_model=1024, d_k=128, d_v=128), 4.66, 26.0, 168),
    "table3/C-dff1024": Table3Row(replace(BASE, d_ff=1024), 5.12, 25.4, 53),
    "table3/C-dff4096": Table3Row(replace(BASE, d_ff=4096), 4.75, 26.2, 90),
    "table3/D-dropout0.0": Table3Row(replace(BASE, dropout=0.0), 5.77, 24.6),
    "table3/D-dropout0.2": Table3Row(replace(BASE, dropout=0.2), 4.95, 25.5),
    "table3/D-smoothing0.0": Table3Row(BASE, 4.67, 25.3, label_smoothing=0.0),
    "table3/D-smoothing0.2": Table3Row(BASE, 5.47, 25.7, label_smoothing=0.2),
    "table3/E-learned": Table3Row(replace(BASE, positions="learned"), 4.92, 25.7),
    "big": Table3Row(BIG, 4.33, 26.4, 213, updates=300_000, vocab_size=36_000),
}

# The presets base and big can also be named with the prefix of the other rows.
TABLE_3_ALIASES = {"table3/base": "base", "table3/big": "big"}

PRESETS: dict[str, dict[str, ModelSize]] = {
    "transformer": {
        **{name: row.size for name, row in TABLE_3.items()},
        **{alias: TABLE_3[name].size for alias, name in TABLE_3_ALIASES.items()},
        "small": TransformerSize(layers=3, d_model=256, d_ff=1024, heads=4, d_k=64, d_v=64, dropout=0.1),
        # For fast translation on a CPU: the sizes of student models that learn from a larger one (Kim and Rush 2016).
        "student-base": replace(BASE, decoder_layers=2),
        "student-tiny": replace(BASE, d_model=256, d_ff=1536, d_k=32, d_v=32, decoder_layers=2),
        "tiny": TransformerSize(layers=2, d_model=192, d_ff=768, heads=4, d_k=48, d_v=48, dropout=0.1),
    },
    "recurrent": {
        "base": RecurrentSize(layers=4, d_model=1024, dropout=0.2),
        "small": RecurrentSize(layers=2, d_model=512, dropout=0.1),
        "tiny": RecurrentSize(layers=1, d_model=256, dropout=0.1),
    },
    "convolutional": {
        "base": ConvolutionalSize(layers=15, d_model=512, dropout=0.1),
        "small": ConvolutionalSize(layers=6, d_model=256, dropout=0.1),
        "tiny": ConvolutionalSize(layers=3, d_model=192, dropout=0.1),
        # Gehring et al. 2017, sections 4.2 and 5.1.
        "wmt14-en-de": ConvolutionalSize(layers=15, d_model=512, dropout=0.1, convolutions=((512, 3, 10), (768, 3, 3), (2048, 1, 2))),
        # fairseq's fconv_wmt_en_de, the authors' code: not the sizes of the paper's text.
        "fconv-wmt-en-de": ConvolutionalSize(layers=15, d_model=768, dropout=0.1, convolutions=((512, 3, 9), (1024, 3, 4), (2048, 1, 2))),
    },
}


def table_3_row(preset: str) -> Table3Row | None:
    """Return the row of the paper's Table 3 that a preset is; None for other presets."""
    return TABLE_3.get(TABLE_3_ALIASES.get(preset, preset))


def resolve(model: Model) -> ModelSize:
    """Return the sizes of a `model` section: the preset of its architecture, overridden by the section's other keys.

    If d_model or heads is overridden, d_k and d_v that are not become d_model / heads (paper 3.2.2). Raises `UserError` (78): an unknown
    preset, a key of another architecture, or sizes that cannot be built.
    """
    presets = PRESETS[model.architecture]
    if model.preset not in presets:
        message = f"model.preset: no preset of the architecture {model.architecture} is called {model.preset!r}"
        raise configuration_error(message, did_you_mean(model.preset, presets, f"There are: {', '.join(presets)}."))
    preset = presets[model.preset]
    overrides = {key: value for key, value in model.model_dump(exclude={"preset", "architecture"}).items() if value is not None}
    foreign = sorted(overrides.keys() - {field.name for field in fields(preset)})
    if foreign:
        raise configuration_error(f"model.{foreign[0]}: the architecture {model.architecture} has no such setting")
    if model.architecture == "transformer" and model.layers is not None:
        overrides = {"encoder_layers": None, "decoder_layers": None, **overrides}  # `layers` sets both, also those of the preset.
    if model.decoder is not None:
        overrides = _with_settings_of(model.decoder, overrides)
    size = replace(preset, **overrides)
    if isinstance(size, TransformerSize) and model.most_positions is not None and size.positions != "learned":
        raise configuration_error(f"model.most_positions: needs model.positions learned, got {size.positions}", "Leave the key out.")
    if size.d_model % 2:
        raise configuration_error(f"model.d_model: must be even, got {size.d_model}")
    if isinstance(size, ConvolutionalSize):
        return _checked_convolutions(size, overrides)
    if isinstance(size, TransformerSize) and {"d_model", "heads"} & overrides.keys():
        return replace(size, d_k=_head_size(size, "d_k", model.d_k), d_v=_head_size(size, "d_v", model.d_v))
    return size


def _with_settings_of(decoder: str, overrides: dict[str, object]) -> dict[str, object]:
    """Return the overrides with the settings that a paper's decoder fixes."""
    settings = PAPER_DECODERS.get(decoder, {})
    for key, value in settings.items():
        if overrides.get(key, value) != value:
            wanted, got = (str(one).lower() for one in (value, overrides[key]))
            raise configuration_error(f"model.{key}: must be {wanted} with model.decoder {decoder}, got {got}", "Leave the key out.")
    return {**overrides, **settings}


def _checked_convolutions(size: ConvolutionalSize, overrides: dict[str, object]) -> ConvolutionalSize:
    if size.convolutions is None:
        kernels, key = [size.kernel], "kernel"
    else:
        fixed = sorted({"layers", "kernel"} & overrides.keys())
        if fixed:
            raise configuration_error(f"model.{fixed[0]}: is set by model.convolutions", "Leave the key out, or change model.convolutions.")
        groups = tuple((channels, kernel, layers) for channels, kernel, layers in size.convolutions)
        size = replace(size, convolutions=groups, layers=sum(layers for _, _, layers in groups))
        kernels, key = [kernel for _, kernel, _ in groups], "convolutions"
    for kernel in kernels:
        if kernel % 2 == 0:
            what = "must be odd" if key == "kernel" else "kernels must be odd"
            raise configuration_error(f"model.{key}: {what}, so that a convolution has a middle, got {kernel}")
    return size


def _head_size(size: TransformerSize, key: str, override: int | None) -> int:
    if override is not None:
        return override
    if size.d_model % size.heads:
        message = f"model.heads: {size.heads} heads do not divide d_model {size.d_model}"
        raise configuration_error(message, f"Set model.{key} or choose a divisor.")
    return size.d_model // size.heads
