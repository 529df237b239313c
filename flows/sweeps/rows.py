"""Rows of a sweep, each a change to params.yaml."""

import itertools
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.dvc.settings import set_key
from transformer_core.config import Model, Params, resolve
from transformer_core.errors import configuration_error, did_you_mean
from transformer_core.presets import BASE, TABLE_3, TransformerSize
from transformer_core.sizes import ModelSize
from transformer_core.yaml_io import parse_yaml

_WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
# The section `model` of each row of sweep table2: systems of the paper's Table 2 (the convolutional one in one width), and recurrent ones.
_TABLE_2: dict[str, dict[str, Any]] = {
    "recurrent": {"architecture": "recurrent", "preset": "base", "attention": "none"},
    "recurrent-additive": {"architecture": "recurrent", "preset": "base", "attention": "additive"},
    "convolutional": {"architecture": "convolutional", "preset": "base"},
    "base": {"preset": "base"},
    "big": {"preset": "big"},
}


@dataclass(frozen=True)
class Row:
    """A row of a sweep.

    Attributes:
        sections: sections of params.yaml that it replaces, by name.
        overrides: values by dotted key, as in `--set`.
    """

    name: str
    sections: Mapping[str, Mapping[str, Any]]
    overrides: Mapping[str, Any]


def scale_for(params: Params) -> int:
    """Return the power of two that divides the paper's widths so that base is not wider than the model of `params`."""
    width, scale = resolve(params.model).d_model, 1
    while BASE.d_model > width * scale:
        scale *= 2
    return scale


def table3_rows(scale: int) -> list[Row]:
    """Return the rows of the paper's Table 3, every width divided by `scale`; as in the paper, checkpoints are not averaged.

    All are decoded by PyTorch, because CTranslate2 lacks the rows whose d_k differs from d_v.
    """
    rows = []
    for name, row in TABLE_3.items():
        overrides = {"train.label_smoothing": row.label_smoothing, "average.of": "last", "average.count": 1, "decode.engine": "torch"}
        rows.append(Row(name, {"model": _scaled({"preset": f"table3/{name}"}, row.size, scale)}, overrides))
    return rows


def table2_rows(scale: int) -> list[Row]:
    """Return the systems of the paper's Table 2 that can be trained here, every width divided by `scale`.

    All are decoded by PyTorch, because CTranslate2 has Transformers alone.
    """
    engine = {"decode.engine": "torch"}
    return [Row(name, {"model": _scaled(model, resolve(Model(**model)), scale)}, engine) for name, model in _TABLE_2.items()]


def grid_rows(settings: Sequence[str]) -> list[Row]:
    """Return a row for each combination of the values in settings of the form KEY=V1,V2.

    Raises `UserError` (78): no setting, or one of another form.
    """
    keys, values = [], []
    for setting in settings:
        key, equals, listed = setting.partition("=")
        if not (equals and re.fullmatch(r"[\w.]{1,100}", key) and listed):
            raise configuration_error(f"{reprlib.repr(setting)} is not KEY=V1,V2,...", "For example: train.warmup=200,400")
        keys.append(key)
        values.append([parse_yaml(value, key) for value in listed.split(",")])
    if len(set(keys)) < len(keys):
        raise configuration_error(f"{', '.join(keys)}: a key is given twice", "Name all of its values together: KEY=V1,V2")
    for key, several in zip(keys, values, strict=True):
        if any(several.count(value) > 1 for value in several):
            raise configuration_error(f"{key}: a value is given twice", "Name each value once.")
    if not keys:
        raise configuration_error("params: needs settings KEY=V1,V2,...", "For example: python -m flows.sweep params train.warmup=200,400")
    return [
        Row(" ".join(f"{key}={value}" for key, value in zip(keys, chosen, strict=True)), {}, dict(zip(keys, chosen, strict=True)))
        for chosen in itertools.product(*values)
    ]


def rows_of(name: str, settings: Sequence[str], scale: int) -> list[Row]:
    """Return the rows of a sweep."""
    if name == "params":
        return grid_rows(settings)
    return table3_rows(scale) if name == "table3" else table2_rows(scale)


def choose(rows: Sequence[Row], names: Sequence[str] | None) -> list[Row]:
    """Return the rows with the given names, in the order of the table; all rows if there are no names.

    Raises `UserError` (78): no such row.
    """
    available = [row.name for row in rows]
    for name in names or ():
        if name not in available:
            raise configuration_error(f"no row is called {name!r}", did_you_mean(name, available, f"Rows: {', '.join(available)}.", most=1))
    return [row for row in rows if not names or row.name in names]


def document_of(row: Row, base: Mapping[str, Any], seed: int | None, updates: int | None) -> dict[str, Any]:
    """Return the tracked sections of params.yaml for one training of a row; None keeps the recipe's seed or updates.

    A Transformer keeps the recipe's `model.norm`, because the paper's tables do not vary it, and six layers with the paper's post-norm
    learn almost nothing in few updates. Raises `UserError` (78): a key names no section.
    """
    document = {name: dict(section) for name, section in base.items()} | {name: dict(section) for name, section in row.sections.items()}
    if "norm" in base["model"] and document["model"].get("architecture", "transformer") == "transformer":
        document["model"].setdefault("norm", base["model"]["norm"])
    changes = {"train.seed": seed, "train.updates": updates}
    overrides = {**row.overrides, **{key: value for key, value in changes.items() if value is not None}}
    for key, value in overrides.items():
        set_key(document, key, value)
    return document


def _scaled(model: Mapping[str, Any], size: ModelSize, scale: int) -> dict[str, Any]:
    if scale == 1:
        return dict(model)
    widths = {name: getattr(size, name) // scale for name in (_WIDTHS if isinstance(size, TransformerSize) else ("d_model",))}
    return {**model, **widths}
