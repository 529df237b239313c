"""Sizes of parsers, the presets of an architecture of its own."""

from dataclasses import dataclass
from typing import Literal

from transformer_core.presets import BASE, SMALL, TINY, TransformerSize
from transformer_core.sizes import Architecture
from transformer_core.tasks import TREES


@dataclass(frozen=True, kw_only=True)
class ParserSize(TransformerSize):
    """Sizes of a Transformer that has one encoder position for each word."""

    architecture: Literal["parser"] = "parser"  # type: ignore[assignment]


_PRESETS = {
    name: ParserSize(**{key: value for key, value in vars(size).items() if key != "architecture"})
    for name, size in {"base": BASE, "small": SMALL, "tiny": TINY}.items()
}
ARCHITECTURES = {"parser": Architecture(ParserSize, _PRESETS, "transformer_core.parsing.parser:Parser", TREES)}
