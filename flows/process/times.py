"""How long each stage took to make what is there, in `.state/times/STAGE.json`: no output of DVC's, for no two runs take the same time."""

from itertools import takewhile
from pathlib import Path
from typing import Any

from flows.process.paths import STATE
from transformer_core.config import Params
from transformer_core.files import read_json, write_json


def record_seconds(stage: str, params: Params, seconds: float) -> None:
    """Keep how long a stage took that has ended well, with the settings it had."""
    write_json(_file(stage), {"seconds": round(seconds, 1), "settings": _settings(stage, params)})


def seconds_of(stage: str, params: Params) -> float | None:
    """How long a stage took here with the settings of `params`, its own and those of the stages before; None where it has not run with
    them last: DVC then took its outputs from the cache.
    """
    file = _file(stage)
    record = read_json(file) if file.exists() else {"settings": None}
    return record["seconds"] if record["settings"] == _settings(stage, params) else None


def _file(stage: str) -> Path:
    return STATE / "times" / f"{stage}.json"


def _settings(stage: str, params: Params) -> dict[str, Any]:
    """The sections of params.yaml up to the stage's own; they stand in the order of the stages."""
    sections = params.model_dump(mode="json")
    before = takewhile(lambda name: name != stage, sections)
    return {name: sections[name] for name in (*before, stage) if name in sections}
