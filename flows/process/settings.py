"""The settings of one run of the flow: a recipe and changed keys, written to params.yaml."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flows.process.paths import STATE
from transformer_core import recipes
from transformer_core.config import PARAMS_FILE, Params, check_across_sections, editable_yaml, read_yaml, validate_document, yaml_text
from transformer_core.errors import configuration_error
from transformer_core.files import new_file, sha256_of, write_text
from transformer_core.presets import resolve

BACKUPS = STATE / "params"
MACHINE = "machine"


def write_params(recipe: str | None, overrides: Mapping[str, Any]) -> Path | None:
    """Write a recipe with some keys changed to params.yaml, if all settings are valid. The present section `machine` is kept.

    Args:
        recipe: its name; None for the present params.yaml.
        overrides: values by dotted key, as {"train.updates": 50}.

    Returns:
        A backup of the previous file, or None if nothing has changed.

    Raises:
        UserError: exit code 78; no such recipe or key, or an invalid value.
    """
    if recipe is None and not overrides:
        return None
    present = _sections(PARAMS_FILE, editable_yaml) if PARAMS_FILE.exists() else {}
    document = present if recipe is None else editable_yaml(recipes.read(recipe), recipe)
    if recipe is not None and MACHINE in present:
        document[MACHINE] = present[MACHINE]
    for key, value in overrides.items():
        _set(document, key, value)
    check(document)
    backup = None
    text = yaml_text(document)
    if PARAMS_FILE.exists() and PARAMS_FILE.read_text(encoding="utf-8") != text:
        backup = BACKUPS / f"{sha256_of(PARAMS_FILE)[:8]}.yaml"
        with new_file(backup) as temporary:
            temporary.write_bytes(PARAMS_FILE.read_bytes())
    write_text(PARAMS_FILE, text)
    return backup


def tracked() -> dict[str, Any]:
    """Return the sections of params.yaml but `machine`: the settings for other machines' clones. Raises `UserError` (78) as `check`."""
    sections = {name: section for name, section in _sections(PARAMS_FILE).items() if name != MACHINE}
    check(sections)
    return sections


def apply_settings(sections: Mapping[str, Any], root: Path) -> None:
    """Write another machine's tracked sections to the params.yaml at `root`; its section `machine` is kept."""
    path = root / PARAMS_FILE
    document = {**sections, MACHINE: _sections(path).get(MACHINE) or {}}
    check(document)
    write_text(path, yaml_text(document))


def check(document: object) -> None:
    """Raise `UserError` (exit code 78) for settings that the schema refuses or from which no model can be built."""
    params = validate_document(Params, document, PARAMS_FILE)
    check_across_sections(params)
    resolve(params.model)


def _sections(path: Path, parse: Callable[[str, str], Any] | None = None) -> dict[str, Any]:
    document = read_yaml(path, parse)
    if not isinstance(document, dict):
        raise configuration_error(f"{path}: must be a document with the sections {', '.join(Params.model_fields)}")
    return document


def _set(document: dict[str, Any], key: str, value: object) -> None:
    section, dot, name = key.partition(".")
    if not (dot and name):
        raise configuration_error(f"override {key!r}: must name section and key", 'For example: {"train.updates": 50}')
    values = document.setdefault(section, {})
    if not isinstance(values, dict):
        raise configuration_error(f"override {key!r}: {section} is no section", f"Sections: {', '.join(Params.model_fields)}.")
    values[name] = value
