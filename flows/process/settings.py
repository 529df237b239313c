"""The settings that one run of the flow was given: a recipe and keys that differ from it, written into params.yaml."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from flows.process.paths import STATE
from transformer_core import recipes
from transformer_core.config import PARAMS_FILE, Params, check_across_sections, read_yaml, validate_document
from transformer_core.errors import configuration_error
from transformer_core.files import new_file, sha256_of
from transformer_core.presets import resolve

KEPT = STATE / "params"
MACHINE = "machine"


def settle(recipe: str | None, overrides: Mapping[str, Any], root: Path = Path()) -> Path | None:
    """Make a recipe (None: what stands there) with some keys changed the params.yaml of the repository at `root`.

    The section `machine` that stands there goes before the recipe's. Nothing is written unless all of it is right.

    Args:
        recipe: its name.
        overrides: values by dotted key, as {"train.updates": 50}.

    Returns:
        Where the file that stood there is kept, or None where it says the same.

    Raises:
        UserError: exit code 78; no such recipe or key, or a value that the schema refuses.
    """
    path = root / PARAMS_FILE
    if recipe is None and not overrides:
        return None
    yaml = _yaml()
    standing: Any = yaml.load(path.read_text(encoding="utf-8")) if path.exists() else {}
    document: Any = standing if recipe is None else yaml.load(recipes.read(recipe))
    if recipe is not None and standing and MACHINE in standing:
        document[MACHINE] = standing[MACHINE]
    for key, value in overrides.items():
        _set(document, key, value)
    check(document)
    kept = None
    text = _text(document)
    if path.exists() and path.read_text(encoding="utf-8") != text:
        kept = root / KEPT / f"{sha256_of(path)[:8]}.yaml"
        with new_file(kept) as temporary:
            temporary.write_bytes(path.read_bytes())
    _write(text, path)
    return kept


def tracked(root: Path = Path()) -> dict[str, Any]:
    """The params.yaml at `root` without section `machine`, as it stands there: what another machine's clone is to run with."""
    return {name: section for name, section in read_yaml(root / PARAMS_FILE).items() if name != MACHINE}


def take_over(sections: Mapping[str, Any], root: Path) -> None:
    """Make another machine's tracked sections those of the params.yaml at `root`, beside this one's section `machine`."""
    own = read_yaml(root / PARAMS_FILE).get(MACHINE) or {}
    document = {**sections, MACHINE: own}
    check(document)
    _write(_text(document), root / PARAMS_FILE)


def check(document: object) -> None:
    """Refuse settings that the schema refuses or that no model can be built from (`UserError`, exit code 78)."""
    params = validate_document(Params, document, PARAMS_FILE)
    check_across_sections(params)
    resolve(params.model)


def _set(document: dict[str, Any], key: str, value: object) -> None:
    section, dot, name = key.partition(".")
    if not (dot and name):
        raise configuration_error(f"override {key!r}: must name section and key", 'For example: {"train.updates": 50}')
    values = document.setdefault(section, {})
    if not isinstance(values, dict):
        raise configuration_error(f"override {key!r}: {section} is no section", f"Sections: {', '.join(Params.model_fields)}.")
    values[name] = value


def _text(document: object) -> str:
    text = io.StringIO()
    _yaml().dump(document, text)
    return text.getvalue()


def _yaml() -> YAML:
    yaml = YAML()  # Round trip: comments stay.
    yaml.width = 1_000
    return yaml


def _write(text: str, path: Path) -> None:
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
