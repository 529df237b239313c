"""Rows of a sweep, each a change to params.yaml."""

import itertools
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flows.dvc.settings import set_key
from transformer_core.config import Model, Params, resolve
from transformer_core.errors import configuration_error, did_you_mean
from transformer_core.presets import BASE, TABLE_3
from transformer_core.recipes import BASELINES
from transformer_core.yaml_io import parse_yaml

GRID, SEED, _RATE = "params", "train.seed", "train.learning_rate_factor"
# Of table2, times the recipe's: best on valid of Tatoeba after 1.5 minutes on a core, among 0.5, 1, 2 and 4; those not named have 4.
_RATES = {"transformer": 1.0, "convolutional": 2.0}
_WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
# The rows of sweep `parts`, which change one part of the recipe's Transformer each, by what they set.
_ABLATION = {"model.architecture": "ablation"}
_PARTS: dict[str, dict[str, Any]] = {
    "as the recipe": {},
    **{f"d_k {width}": {"model.d_k": width} for width in (12, 192)},
    **{
        f"{energies} energies with d_k {width}": {**_ABLATION, "model.energies": energies, "model.d_k": width}
        for energies in ("dot", "additive")
        for width in (12, 48, 192)
    },
    "no warm-up": {"train.warmup": 1},
    "no residuals": {**_ABLATION, "model.residual": False},
    "pre-norm": {"model.norm": "pre"},
    **{f"{norm}-norm with 6 layers": {"model.norm": norm, "model.layers": 6} for norm in ("post", "pre")},
    "1 head": {"model.heads": 1},
    **{f"{heads} heads": {"model.heads": heads} for heads in (2, 8)},
    "learned positions": {"model.positions": "learned"},
    "no positions": {"model.positions": "none"},
    "no label smoothing": {"train.label_smoothing": 0},
    "one checkpoint": {"average.count": 1},
}


class Row(NamedTuple):
    """A row of a sweep: the sections of params.yaml that it replaces, and values by dotted key, as in `--set`."""

    name: str
    sections: Mapping[str, Mapping[str, Any]]
    overrides: Mapping[str, Any]


def scale_for(params: Params) -> int:
    """Return the power of two that divides the paper's widths so that base is not wider than the model of `params`."""
    width, scale = resolve(params.model).d_model, 1
    while BASE.d_model > width * scale:
        scale *= 2
    return scale


def rows_of(name: str, scale: int, rate: float = 1.0) -> list[Row]:
    """Return the rows of a table of the paper with every width divided by `scale`, or the one row of a sweep of settings alone.

    Those of tables are decoded by PyTorch in float32: CTranslate2 has Transformers alone, and lacks those whose d_k differs from d_v. As in
    the paper, checkpoints of Table 3 are not averaged. Table 2 has the Transformer and all baselines of a preset, at multiples of `rate`.
    """
    engine = {"decode.engine": "torch", "decode.precision": "float32"}
    if name == GRID:
        return [Row("", {}, {})]
    if name == "parts":
        return [Row(part, {}, {**changes, **engine}) for part, changes in _PARTS.items()]
    if name == "table2":
        preset: dict[str, Any] = {"preset": {1: "base", 2: "small"}.get(scale, "tiny")}
        models = {"transformer": preset} | {name.partition("-")[2]: preset | keys for name, (_, keys) in BASELINES.items()}
        return [Row(model, {"model": keys}, {**engine, _RATE: rate * _RATES.get(model, 4.0)}) for model, keys in models.items()]
    last = {"average.of": "last", "average.count": 1, **engine}
    return [
        Row(name, {"model": _scaled(f"table3/{name}", scale)}, {"train.label_smoothing": row.label_smoothing, **last})
        for name, row in TABLE_3.items()
    ]


def grid(rows: Sequence[Row], settings: Sequence[str]) -> list[Row]:
    """Return each row with each combination of the values in settings KEY=V1,V2. Its name has those with several values but the seed.

    Raises `UserError` (78): a setting of another form, or neither a setting nor a row of a table.
    """
    if not (settings or rows[0].name):
        raise configuration_error("params: needs settings KEY=V1,V2,...", "For example: python -m flows.sweep params train.warmup=200,400")
    listed: dict[str, list[tuple[str, Any]]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not (equals and re.fullmatch(r"[\w.]{1,100}", key) and text):
            raise configuration_error(f"{reprlib.repr(setting)} is not KEY=V1,V2,...", "For example: train.warmup=200,400")
        values = [(key, parse_yaml(value, key)) for value in text.split(",")]
        if key in listed or any(values.count(value) > 1 for value in values):
            raise configuration_error(f"{key}: the key or a value is given twice", "Name each once: KEY=V1,V2")
        listed[key] = values
    found = []
    for row, chosen in itertools.product(rows, map(dict, itertools.product(*listed.values()))):
        named = [f"{key}={value}" for key, value in chosen.items() if key != SEED and len(listed[key]) > 1]
        found.append(Row(" ".join(filter(None, [row.name, *named])) or GRID, row.sections, {**row.overrides, **chosen}))
    return found


def choose(rows: Sequence[Row], names: Sequence[str] | None) -> list[Row]:
    """Return the rows with the given names, in the order of the table; all rows if there are no names.

    Raises `UserError` (78): no such row.
    """
    available = [row.name for row in rows]
    for name in names or ():
        if name not in available:
            raise configuration_error(f"no row is called {name!r}", did_you_mean(name, available, f"Rows: {', '.join(available)}.", most=1))
    return [row for row in rows if not names or row.name in names]


def document_of(row: Row, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tracked sections of params.yaml for one training of a row.

    A Transformer keeps the recipe's `model.norm`, because the paper's tables do not vary it, and six layers with the paper's post-norm
    learn almost nothing in few updates. Raises `UserError` (78): a key names no section.
    """
    document = {name: dict(section) for name, section in base.items()} | {name: dict(section) for name, section in row.sections.items()}
    if "norm" in base["model"] and document["model"].get("architecture", "transformer") == "transformer":
        document["model"].setdefault("norm", base["model"]["norm"])
    for key, value in row.overrides.items():
        set_key(document, key, value)
    return document


def _scaled(preset: str, scale: int) -> dict[str, Any]:
    size = resolve(Model(preset=preset))
    return {"preset": preset, **{name: getattr(size, name) // scale for name in _WIDTHS if scale > 1}}
