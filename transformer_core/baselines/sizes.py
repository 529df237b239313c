"""Sizes of the baselines by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field

from transformer_core.errors import configuration_error
from transformer_core.presets import TransformerSize, presets_of
from transformer_core.schema import PositiveInt
from transformer_core.sizes import Architecture, ModelSize, key


def _check_odd(kernel: int) -> int:
    if kernel % 2 == 0:
        raise ValueError("must be odd, so that a convolution has a middle")
    return kernel


_Odd = Annotated[PositiveInt, AfterValidator(_check_odd)]
# YAML and JSON have lists in place of tuples.
_Group = Annotated[tuple[PositiveInt, _Odd, PositiveInt], Field(strict=False)]
_Groups = Annotated[tuple[_Group, ...], Field(strict=False)]
# The settings that each paper's decoder fixes.
_PAPER_DECODERS: dict[str, dict[str, object]] = {
    "cho": {"cell": "gru", "attention": "none", "bidirectional": False},
    "bahdanau": {"cell": "gru", "attention": "additive", "bidirectional": True},
    "luong": {"cell": "lstm", "attention": "dot", "bidirectional": False},
}


@dataclass(frozen=True, kw_only=True)
class RecurrentSize(ModelSize):
    """Sizes of a recurrent encoder-decoder: the sequence-to-sequence models before the Transformer.

    `d_model` is the width of embedding, encoder output and decoder state; each direction of a bidirectional encoder has half of it. Dropout
    is between layers, on embeddings and before the projection. `decoder` is the order of a decoder step: a class of recurrent.py each.
    """

    architecture: Literal["recurrent"] = "recurrent"
    cell: Literal["lstm", "gru"] = key("`lstm` (Hochreiter and Schmidhuber 1997) or `gru` (Cho et al. 2014)", "lstm")
    attention: Literal["none", "additive", "dot"] = key(
        "`none`, a fixed vector alone (Sutskever et al. 2014), `additive` (Bahdanau et al. 2015) or `dot` (Luong et al. 2015)", "additive"
    )
    decoder: Literal["simple", "cho", "bahdanau", "luong"] = key(
        "`simple`, or as published, which fixes `cell`, `attention` and `bidirectional`: `cho`, `bahdanau` or `luong` "
        "([experiments.md](experiments.md#earlier-models))",
        "simple",
    )
    bidirectional: bool = key("the encoder also reads from right to left", True)
    reverse_source: bool = key(
        "the encoder reads the source tokens in reverse order, the end token last (Sutskever et al. 2014, 3.3)", False
    )

    def changed(self, settings: Mapping[str, Any]) -> Self:
        decoder = settings.get("decoder", "simple")
        fixed = _PAPER_DECODERS.get(decoder, {})
        for name, value in fixed.items():
            if settings.get(name, value) != value:
                wanted, found = (str(setting).lower() for setting in (value, settings[name]))
                fault = f"model.{name}: must be {wanted} with model.decoder {decoder}, got {found}"
                raise configuration_error(fault, "Leave the key out.")
        return super().changed({**settings, **fixed})


@dataclass(frozen=True, kw_only=True)
class ConvolutionalSize(ModelSize):
    """Sizes of a convolutional encoder-decoder with attention in each decoder layer (ConvS2S, Gehring et al. 2017).

    `d_model` is the width of the embedding, and the number of channels where `convolutions` is None. Dropout is on embeddings, on the input
    of each convolution and before the projection. A linear map is added wherever the width changes (section 3.2).
    """

    architecture: Literal["convolutional"] = "convolutional"
    kernel: _Odd = key("positions that a convolution spans, odd", 3)
    convolutions: _Groups | None = key(
        "list of [channels, kernel, layers] of successive groups of layers of both stacks, instead of `layers` and `kernel`", None
    )

    @property
    def groups(self) -> tuple[_Group, ...]:
        """Channels, kernel and number of layers of successive groups."""
        return self.convolutions or ((self.d_model, self.kernel, self.layers),)

    @property
    def depth(self) -> int:
        return sum(layers for _, _, layers in self.groups)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        size = super().changed(settings)
        if size.convolutions and (fixed := sorted({"layers", "kernel"} & settings.keys())):
            remedy = "Leave the key out, or change model.convolutions."
            raise configuration_error(f"model.{fixed[0]}: is set by model.convolutions", remedy)
        return replace(size, layers=size.depth)


@dataclass(frozen=True, kw_only=True)
class ByteNetSize(ModelSize):
    """Sizes of ByteNet (Kalchbrenner et al. 2016): `layers` are residual blocks of each stack, `d_model` is their outer width, 2d there.

    Dropout is on embeddings, on the output of each block before its residual, and before the projection.
    """

    architecture: Literal["bytenet"] = "bytenet"
    kernel: _Odd = key("positions that a convolution spans, odd", 3)


@dataclass(frozen=True, kw_only=True)
class AblationSize(TransformerSize):
    """Sizes of a Transformer, and what is changed in it for an experiment."""

    architecture: Literal["ablation"] = "ablation"  # type: ignore[assignment]
    energies: Literal["scaled", "dot", "additive"] = key(
        "of attention: `scaled` as in the paper (3.2.1), `dot` without 1/sqrt(d_k), or `additive` (Bahdanau et al. 2015)", "scaled"
    )
    residual: bool = key("whether a sub-layer's input is added to its output (3.1)", True)


_RECURRENT = {
    "base": RecurrentSize(layers=4, d_model=1024, dropout=0.2),
    "small": RecurrentSize(layers=2, d_model=512, dropout=0.1),
    "tiny": RecurrentSize(layers=1, d_model=256, dropout=0.1),
}
_CONVOLUTIONAL = {
    "base": ConvolutionalSize(layers=15, d_model=512, dropout=0.1),
    "small": ConvolutionalSize(layers=6, d_model=256, dropout=0.1),
    "tiny": ConvolutionalSize(layers=3, d_model=192, dropout=0.1),
    # Gehring et al. 2017, sections 4.2 and 5.1.
    "wmt14-en-de": ConvolutionalSize(layers=15, d_model=512, dropout=0.1, convolutions=((512, 3, 10), (768, 3, 3), (2048, 1, 2))),
    # fairseq's fconv_wmt_en_de, the authors' code: not the sizes of the paper's text.
    "fconv-wmt-en-de": ConvolutionalSize(layers=15, d_model=768, dropout=0.1, convolutions=((512, 3, 9), (1024, 3, 4), (2048, 1, 2))),
}
_BYTENET = {
    "base": ByteNetSize(layers=30, d_model=1600, dropout=0.1),  # Kalchbrenner et al. 2016, section 5.
    "small": ByteNetSize(layers=10, d_model=512, dropout=0.1),
    "tiny": ByteNetSize(layers=5, d_model=256, dropout=0.1),
}
ARCHITECTURES = {
    "recurrent": Architecture(RecurrentSize, _RECURRENT, "transformer_core.baselines.recurrent:recurrent_model"),
    "convolutional": Architecture(ConvolutionalSize, _CONVOLUTIONAL, "transformer_core.baselines.convolutional:Convolutional"),
    "bytenet": Architecture(ByteNetSize, _BYTENET, "transformer_core.baselines.bytenet:ByteNet"),
    "ablation": Architecture(AblationSize, presets_of(AblationSize), "transformer_core.baselines.ablations:Ablation"),
}
