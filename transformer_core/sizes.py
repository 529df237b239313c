"""Sizes of models: the one list of the keys of section `model`, and the registry of architectures.

A field of a dataclass of sizes is a key of params.yaml. Its metadata says what the export to CTranslate2, trainings that start from other
weights, and docs/settings.md need to know of it. transformer_core/config.py makes section `model` from these fields.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, Self

from transformer_core.errors import configuration_error
from transformer_core.schema import PositiveInt, Probability

# The modules that define `ARCHITECTURES`. No other code names the baselines; a model's own module is loaded when the model is built.
_MODULES = ("transformer_core.presets", "transformer_core.parsing.sizes", "transformer_core.baselines.sizes")


def key(words: str, default: Any = MISSING, *, exported: bool = False, dropout: bool = False) -> Any:
    """Return the field of a key.

    Args:
        words: its meaning, for docs/settings.md.
        default: its value in a preset that does not set it; every preset must set a key without a default.
        exported: whether the export to CTranslate2 converts it. If not, a model with another value than the default is not exported.
        dropout: whether it is a dropout, which changes neither the weights' shapes nor a translation.
    """
    return field(default=default, metadata={"words": words, "exported": exported or dropout, "dropout": dropout})


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Sizes that every architecture has (symbols as in the paper's Table 3)."""

    architecture: str
    layers: PositiveInt = key("N, layers of the encoder, and of the decoder", exported=True)
    d_model: PositiveInt = key("width of embeddings and layers, even", exported=True)
    dropout: Probability = key("P_drop, on each sub-layer's output and on embedding plus position (5.4)", dropout=True)

    @property
    def depth(self) -> int:
        """Number of layers of the deeper stack."""
        return self.layers

    @classmethod
    def keys_that_are(cls, fact: Literal["exported", "dropout"]) -> set[str]:
        """Return the keys of which `key` says so."""
        return {each.name for each in fields(cls) if each.metadata.get(fact)}

    def effective(self) -> Self:
        """Return the sizes without what changes neither weights nor translations."""
        without_dropout: dict[str, Any] = dict.fromkeys(self.keys_that_are("dropout"), 0.0)
        return replace(self, **without_dropout)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return the sizes with some keys of section `model` set. Raises `UserError` (78): sizes that cannot be built."""
        size = replace(self, **settings)
        if size.d_model % 2:
            raise configuration_error(f"model.d_model: must be even, got {size.d_model}")
        return size


class Architecture(NamedTuple):
    """The class of an architecture's sizes, its presets by name, and "module:name" of what makes a model of sizes and vocabulary size."""

    size: type[ModelSize]
    presets: Mapping[str, ModelSize]
    model: str
    target: str | None = None  # The only `download.target` that it is for; None for any.


@cache
def architectures() -> dict[str, Architecture]:
    """Return all architectures by name, the default first."""
    return {name: entry for module in _MODULES for name, entry in import_module(module).ARCHITECTURES.items()}
