"""dvc.yaml says what is: each stage depends on the code it loads, no more and no less, and on its own section of params.yaml."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from transformer_core.config import Params

ROOT = Path(__file__).parents[1]
STAGES: dict[str, dict[str, Any]] = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
# What cannot change a result: how a stage is run, spread over processes and recorded; the schema, whose every key stands in params.yaml.
NO_RESULT = {
    "flows/process/child.py",
    "flows/cluster/gang.py",
    "flows/record/journal.py",
    "flows/record/lineage.py",
    "flows/process/paths.py",
    "flows/process/runner.py",
    "flows/scores.py",
    "flows/process/times.py",
    "flows/record/sending.py",
    "flows/record/server.py",
    "flows/record/usage.py",
    "transformer_core/config.py",
    "transformer_core/errors.py",
    "transformer_core/files.py",
    "transformer_core/processes.py",
}
LOADED = """
import importlib, json, sys
from pathlib import Path
importlib.import_module(sys.argv[1])
files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
root = Path(sys.argv[2])
print(json.dumps([str(Path(f).relative_to(root)) for f in files if f and Path(f).is_relative_to(root)]))
"""


def loaded_by(stage: str) -> set[str]:
    command = [sys.executable, "-c", LOADED, f"flows.stages.{stage}", str(ROOT)]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    packages = ("transformer_core/", "flows/")
    return {name for name in json.loads(output) if name.startswith(packages) and not name.endswith("__init__.py")}


def test_the_stages_are_those_of_the_design_in_order() -> None:
    assert list(STAGES) == ["download", "clean", "bpe", "binarize", "train", "average", "decode", "evaluate", "publish"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_the_code_it_loads(stage: str) -> None:
    deps = STAGES[stage]["deps"]
    missing = {name for name in loaded_by(stage) - NO_RESULT if not any(name == dep or name.startswith(f"{dep}/") for dep in deps)}
    assert not missing


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_no_code_that_it_does_not_load(stage: str) -> None:
    # Loaded in a function, when it is needed: the generator by the synthetic corpus, the served model's code by MLflow, an engine by name.
    later = {"transformer_core/synthetic", "flows/record/served_model.py"}
    later |= {"transformer_core/decoding/ctranslate2.py", "transformer_core/export/ctranslate2.py"}
    modules = loaded_by(stage)
    code = {dep for dep in STAGES[stage]["deps"] if dep.startswith(("transformer_core/", "flows/"))} - later
    assert {dep for dep in code if (ROOT / dep).suffix == ".py"} <= modules
    for folder in code:
        if not folder.endswith(".py") and list((ROOT / folder).glob("*.py")):
            assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.py")} - {f"{folder}/__init__.py"} <= modules


def test_no_stage_tracks_the_machine_and_every_other_section_is_tracked() -> None:
    tracked = [section for stage in STAGES.values() for section in stage["params"]]
    assert sorted(tracked) == sorted(set(Params.model_fields) - {"machine"})


def test_nothing_is_persisted_or_kept_out_of_the_cache() -> None:
    for stage in STAGES.values():
        for out in (*stage["outs"], *stage.get("metrics", [])):
            assert isinstance(out, str)
