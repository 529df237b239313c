"""The paper's models by name, and two small ones. A preset is a starting point: keys of `model` override it one by one."""

import difflib
from dataclasses import asdict, dataclass

from transformer_core.config import Model
from transformer_core.errors import configuration_error


@dataclass(frozen=True)
class TransformerSize:
    """The sizes of a Transformer, symbols as in the paper's Table 3, and what it drops.

    `dropout` is the paper's P_drop, on each sub-layer's output and on embedding plus position (5.4). The other two are not in the paper's
    models: dropout of attention weights, and of the feed-forward network's inner activations.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    d_k: int
    d_v: int
    dropout: float
    attention_dropout: float = 0.0
    relu_dropout: float = 0.0


PRESETS = {
    "base": TransformerSize(layers=6, d_model=512, d_ff=2048, heads=8, d_k=64, d_v=64, dropout=0.1),
    "big": TransformerSize(layers=6, d_model=1024, d_ff=4096, heads=16, d_k=64, d_v=64, dropout=0.3),
    "small": TransformerSize(layers=3, d_model=256, d_ff=1024, heads=4, d_k=64, d_v=64, dropout=0.1),
    "tiny": TransformerSize(layers=2, d_model=192, d_ff=768, heads=4, d_k=48, d_v=48, dropout=0.1),
}


def resolve(model: Model) -> TransformerSize:
    """The sizes that a `model` section means: the preset with the section's other keys put over it.

    Where d_model or heads is overridden and d_k or d_v is not, these follow as d_model / heads (paper 3.2.2).

    Raises:
        UserError: exit code 78; an unknown preset, an odd d_model, or heads that do not divide d_model where d_k and d_v follow.
    """
    if model.preset not in PRESETS:
        near = difflib.get_close_matches(model.preset, PRESETS, n=3, cutoff=0.4) or sorted(PRESETS)
        raise configuration_error(f"model.preset: no preset is called {model.preset!r}", f"Nearest: {', '.join(near)}.")
    overrides = {key: value for key, value in model.model_dump(exclude={"preset"}).items() if value is not None}
    sizes = asdict(PRESETS[model.preset]) | overrides
    if sizes["d_model"] % 2:
        raise configuration_error(f"model.d_model: must be even for sines and cosines in pairs, got {sizes['d_model']}")
    if {"d_model", "heads"} & overrides.keys():
        for key in sorted({"d_k", "d_v"} - overrides.keys()):
            sizes[key] = _head_size(sizes["d_model"], sizes["heads"], key)
    return TransformerSize(**sizes)


def _head_size(d_model: int, heads: int, key: str) -> int:
    if d_model % heads:
        raise configuration_error(f"model.heads: {heads} heads do not divide d_model {d_model}", f"Set model.{key} or choose a divisor.")
    return d_model // heads
