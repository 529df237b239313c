"""Sizes of Transformers by name: base and big, all rows of the paper's Table 3, and small ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from transformer_core.errors import configuration_error
from transformer_core.schema import PositiveInt, Probability
from transformer_core.sizes import Architecture, ModelSize, key


@dataclass(frozen=True, kw_only=True)
class TransformerSize(ModelSize):
    """Sizes of a Transformer and its variants; the defaults are those of the paper's base model."""

    architecture: Literal["transformer"] = key("", "transformer", exported=True)
    encoder_layers: PositiveInt | None = key("layers of the encoder, if not `layers`", None, exported=True)
    decoder_layers: PositiveInt | None = key(
        "layers of the decoder, if not `layers`; few behind a deep encoder translate faster (Kasai et al. 2021)", None, exported=True
    )
    d_ff: PositiveInt = key("width of the feed-forward network's inner layer", exported=True)
    heads: PositiveInt = key("h, attention heads", exported=True)
    d_k: PositiveInt = key("width of a head's queries and keys; d_model / heads if `d_model` or `heads` is set (3.2.2)", exported=True)
    d_v: PositiveInt = key("width of a head's values; as `d_k`", exported=True)
    attention_dropout: Probability = key("dropout of attention weights, 0 in all presets", 0.0, dropout=True)
    relu_dropout: Probability = key("dropout of the feed-forward network's inner activations, 0 in all presets", 0.0, dropout=True)
    activation: Literal["relu", "swish", "gelu"] = key("of the feed-forward network; the paper's is `relu` (3.3)", "relu", exported=True)
    attention_bias: bool = key("biases of attention's projections, as Marian's models have", False, exported=True)
    output_bias: bool = key("a bias of the projection to logits, as Marian's models have", False, exported=True)
    norm: Literal["post", "pre"] = key(
        "`post` is after each residual, as in the paper; `pre` is before each sub-layer and at the end of stacks", "post", exported=True
    )
    positions: Literal["sinusoidal", "learned", "none"] = key(
        "`sinusoidal`, `learned` (Table 3, row E) or `none`: the encoder then sees no order of tokens", "sinusoidal", exported=True
    )
    most_positions: PositiveInt = key("number of learned positions, with `positions: learned` only", 1024, exported=True)
    tied: Literal["all", "decoder", "none"] = key(
        "what shares one matrix (3.4): `all`, source, target and projection; `decoder`, target and projection; `none`", "all", exported=True
    )

    @property
    def depths(self) -> tuple[int, int]:
        """Numbers of layers of encoder and decoder."""
        return self.encoder_layers or self.layers, self.decoder_layers or self.layers

    @property
    def depth(self) -> int:
        return max(self.depths)

    def effective(self) -> Self:
        encoder, decoder = self.depths
        positions = self.most_positions if self.positions == "learned" else 1
        return replace(super().effective(), layers=encoder, encoder_layers=encoder, decoder_layers=decoder, most_positions=positions)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """As in the base class. If d_model or heads is set, d_k and d_v that are not become d_model / heads (paper 3.2.2)."""
        if "layers" in settings:  # It sets both stacks, also those of the preset.
            settings = {"encoder_layers": None, "decoder_layers": None, **settings}
        size = super().changed(settings)
        if "most_positions" in settings and size.positions != "learned":
            raise configuration_error(f"model.most_positions: needs model.positions learned, got {size.positions}", "Leave the key out.")
        if not {"d_model", "heads"} & settings.keys():
            return size
        following = {"d_k", "d_v"} - settings.keys()
        if following and size.d_model % size.heads:
            message = f"model.heads: {size.heads} heads do not divide d_model {size.d_model}"
            raise configuration_error(message, f"Set model.{min(following)} or choose a divisor.")
        widths: dict[str, Any] = dict.fromkeys(following, size.d_model // size.heads)
        return replace(size, **widths)


BASE = TransformerSize(layers=6, d_model=512, d_ff=2048, heads=8, d_k=64, d_v=64, dropout=0.1)
BIG = replace(BASE, d_model=1024, d_ff=4096, heads=16, dropout=0.3)
SMALL = TransformerSize(layers=3, d_model=256, d_ff=1024, heads=4, d_k=64, d_v=64, dropout=0.1)
TINY = TransformerSize(layers=2, d_model=192, d_ff=768, heads=4, d_k=48, d_v=48, dropout=0.1)


def presets_of(kind: type[TransformerSize]) -> dict[str, TransformerSize]:
    """Return the presets of a variant of the Transformer: base, small and tiny."""
    presets = {"base": BASE, "small": SMALL, "tiny": TINY}
    return {name: kind(**{key: value for key, value in vars(size).items() if key != "architecture"}) for name, size in presets.items()}


class Table3Row(NamedTuple):
    """A row of the paper's Table 3: sizes, training settings, and the paper's results on newstest2013."""

    size: TransformerSize
    perplexity: float  # Per subword.
    bleu: float  # Tokenised BLEU of one checkpoint (the table does not average).
    millions: int | None = None  # Number of parameters in millions, where the table gives it.
    label_smoothing: float = 0.1
    updates: int = 100_000
    vocab_size: int = 41_100  # V at which our number of parameters rounds to the paper's in all rows; the table does not give V.


# By the name of the row. Each is a preset, as `table3/base`.
TABLE_3 = {
    "base": Table3Row(BASE, 4.92, 25.8, 65),
    "A-h1": Table3Row(replace(BASE, heads=1, d_k=512, d_v=512), 5.29, 24.9),
    "A-h4": Table3Row(replace(BASE, heads=4, d_k=128, d_v=128), 5.00, 25.5),
    "A-h16": Table3Row(replace(BASE, heads=16, d_k=32, d_v=32), 4.91, 25.8),
    "A-h32": Table3Row(replace(BASE, heads=32, d_k=16, d_v=16), 5.01, 25.4),
    "B-dk16": Table3Row(replace(BASE, d_k=16), 5.16, 25.1, 58),
    "B-dk32": Table3Row(replace(BASE, d_k=32), 5.01, 25.4, 60),
    "C-N2": Table3Row(replace(BASE, layers=2), 6.11, 23.7, 36),
    "C-N4": Table3Row(replace(BASE, layers=4), 5.19, 25.3, 50),
    "C-N8": Table3Row(replace(BASE, layers=8), 4.88, 25.5, 80),
    "C-dmodel256": Table3Row(replace(BASE, d_model=256, d_k=32, d_v=32), 5.75, 24.5, 28),
    "C-dmodel1024": Table3Row(replace(BASE, d_model=1024, d_k=128, d_v=128), 4.66, 26.0, 168),
    "C-dff1024": Table3Row(replace(BASE, d_ff=1024), 5.12, 25.4, 53),
    "C-dff4096": Table3Row(replace(BASE, d_ff=4096), 4.75, 26.2, 90),
    "D-dropout0.0": Table3Row(replace(BASE, dropout=0.0), 5.77, 24.6),
    "D-dropout0.2": Table3Row(replace(BASE, dropout=0.2), 4.95, 25.5),
    "D-smoothing0.0": Table3Row(BASE, 4.67, 25.3, label_smoothing=0.0),
    "D-smoothing0.2": Table3Row(BASE, 5.47, 25.7, label_smoothing=0.2),
    "E-learned": Table3Row(replace(BASE, positions="learned"), 4.92, 25.7),
    "big": Table3Row(BIG, 4.33, 26.4, 213, updates=300_000, vocab_size=36_000),
}

ARCHITECTURES = {
    "transformer": Architecture(
        size=TransformerSize,
        presets={
            "base": BASE,
            "big": BIG,
            **{f"table3/{name}": row.size for name, row in TABLE_3.items()},
            "small": SMALL,
            # For fast translation on a CPU: the sizes of student models that learn from a larger one (Kim and Rush 2016).
            "student-base": replace(BASE, decoder_layers=2),
            "student-tiny": replace(BASE, d_model=256, d_ff=1536, d_k=32, d_v=32, decoder_layers=2),
            "tiny": TINY,
        },
        model="transformer_core.models.transformer:Transformer",
    )
}
