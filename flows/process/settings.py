"""The settings of one run of the flow: a recipe and changed keys, in params.yaml until the run ends."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from flows.process.paths import STATE
from flows.process.runner import echo
from transformer_core import recipes
from transformer_core.config import PARAMS_FILE, Params, check_params, load_params
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import locked, new_file, write_text
from transformer_core.yaml_io import editable_yaml, parse_yaml, read_yaml, yaml_text

BACKUPS = STATE / "params"
LOCK = STATE / "locks/params"
RUN = "another run of the flow"
MACHINE = "machine"


@contextmanager
def settings_of_run(recipe: str | None, overrides: Mapping[str, Any]) -> Iterator[None]:
    """Write a recipe with some keys changed to params.yaml for the block, then put the previous file back; `machine` is kept.

    Runs with the present params.yaml may go on side by side, but none beside a run that has replaced it: each stage reads the file anew.
    After a run that was killed, the next run puts the file back before it begins, unless somebody has changed it since.

    Args:
        recipe: its name; None for the present params.yaml.
        overrides: values by dotted key, as {"train.updates": 50}.

    Raises:
        UserError: exit code 78; no such recipe or key, or an invalid value. 69; another run needs params.yaml as it is.
    """
    if recipe is None and not overrides:
        with suppress(UserError), locked(LOCK, RUN):  # Not beside others like it, which need the file as it is.
            _put_back()
        with locked(LOCK, RUN, shared=True):
            yield
    else:
        with locked(LOCK, RUN):
            _put_back()
            _write(recipe, overrides)
            try:
                yield
            finally:
                _put_back()


def check_settings_of_run(recipe: str | None, overrides: Mapping[str, Any]) -> None:
    """Raise the `UserError` that `settings_of_run` or its block would raise for these settings; none of them is written."""
    if recipe is None and not overrides:
        with settings_of_run(None, {}):
            load_params()
    else:
        with locked(LOCK, RUN):
            _put_back()
            _checked(recipe, overrides)


def _checked(recipe: str | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a recipe with some keys changed. Raises `UserError` (78): see `settings_of_run`."""
    present = _sections(PARAMS_FILE, editable_yaml) if PARAMS_FILE.exists() else {}
    document = present if recipe is None else editable_yaml(recipes.read(recipe), recipe)
    if recipe is not None and MACHINE in present:
        document[MACHINE] = present[MACHINE]
    for key, value in overrides.items():
        _set(document, key, value)
    check_params(document)
    return cast("dict[str, Any]", document)


def _write(recipe: str | None, overrides: Mapping[str, Any]) -> None:
    text = yaml_text(_checked(recipe, overrides))
    if before := PARAMS_FILE.read_bytes() if PARAMS_FILE.exists() else b"":
        with new_file(_kept(text.encode())) as kept:
            kept.write_bytes(before)
    write_text(PARAMS_FILE, text)


def _put_back() -> None:
    """Put back the params.yaml that a run has replaced. If somebody has changed the file since, both are kept and a line says so."""
    for kept in BACKUPS.glob("before-*.yaml"):
        if PARAMS_FILE.exists() and kept == _kept(PARAMS_FILE.read_bytes()):
            kept.replace(PARAMS_FILE)
        else:
            earlier = kept.replace(kept.with_name(kept.name.replace("before", "earlier")))
            echo(
                f"{PARAMS_FILE} was changed during a run with a recipe or overrides, and stays. The file before that run is {earlier}",
                sys.stderr,
            )


def _kept(written: bytes) -> Path:
    """Return where the file is kept that was there before a run wrote these settings."""
    return BACKUPS / f"before-{sha256(written).hexdigest()[:16]}.yaml"


def tracked() -> dict[str, Any]:
    """Return the sections of params.yaml but `machine`: the settings for other clones. Raises `UserError` (78)."""
    sections = {name: section for name, section in _sections(PARAMS_FILE).items() if name != MACHINE}
    check_params(sections)
    return sections


def own_settings() -> dict[str, Any]:
    """Return `tracked()` of the user's params.yaml, which a run with a recipe replaces.

    Raises `UserError`: as `tracked`; 69, such a run is active.
    """
    with settings_of_run(None, {}):
        return tracked()


def apply_settings(sections: Mapping[str, Any], root: Path) -> None:
    """Write another machine's tracked sections to the params.yaml at `root`; its section `machine` is kept."""
    path = root / PARAMS_FILE
    document = {**sections, MACHINE: _sections(path).get(MACHINE) or {}}
    check_params(document)
    write_text(path, yaml_text(document))


def _sections(path: Path, parse: Callable[[str, str], Any] = parse_yaml) -> dict[str, Any]:
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
