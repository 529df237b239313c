"""Sizes of parsers, the presets of an architecture of its own."""

from dataclasses import dataclass
from typing import Literal

from transformer_core.presets import TransformerSize, presets_of
from transformer_core.sizes import Architecture
from transformer_core.tasks import TREES


@dataclass(frozen=True, kw_only=True)
class ParserSize(TransformerSize):
    """Sizes of a Transformer that has one encoder position for each word."""

    architecture: Literal["parser"] = "parser"  # type: ignore[assignment]


ARCHITECTURES = {"parser": Architecture(ParserSize, presets_of(ParserSize), "transformer_core.parsing.parser:Parser", TREES)}
