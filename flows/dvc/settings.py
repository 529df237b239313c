"""The settings of one run: a recipe and changed keys, without the section `machine` of the recipe."""

from collections.abc import Mapping
from typing import Any, cast

from transformer_core import recipes
from transformer_core.config import PARAMS_FILE, Params, check_params
from transformer_core.errors import configuration_error
from transformer_core.yaml_io import editable_yaml, read_yaml

MACHINE = "machine"


def settings_of_run(recipe: str | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document for params.yaml, with comments: a recipe with the present section `machine`, and some keys changed.

    Without a recipe it is the present params.yaml; `overrides` are values by dotted key, as {"train.updates": 50}.

    Raises `UserError` (78): no such recipe or key, or an invalid value.
    """
    present = read_yaml(PARAMS_FILE, editable_yaml) if recipe is None or PARAMS_FILE.exists() else {}
    if not isinstance(present, dict):
        raise configuration_error(f"{PARAMS_FILE}: must be a document with the sections {', '.join(Params.model_fields)}")
    document = present if recipe is None else editable_yaml(recipes.read(recipe), recipe)
    if recipe is not None and MACHINE in present:
        document[MACHINE] = present[MACHINE]
    for key, value in overrides.items():
        set_key(document, key, value)
    check_params(document)
    return cast("dict[str, Any]", document)


def set_key(document: dict[str, Any], key: str, value: object) -> None:
    """Set a value by its dotted key. Raises `UserError` (78): the key names no section."""
    section, dot, name = key.partition(".")
    if not (dot and name):
        raise configuration_error(f"override {key!r}: must name section and key", 'For example: {"train.updates": 50}')
    values = document.setdefault(section, {})
    if not isinstance(values, dict):
        raise configuration_error(f"override {key!r}: {section} is no section", f"Sections: {', '.join(Params.model_fields)}.")
    values[name] = value
