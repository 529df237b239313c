"""dvc.yaml against the code: each stage depends on the modules it imports, no more and no less, and on its own section of params.yaml."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from tests.clone import ROOT
from transformer_core.config import Params

STAGES: dict[str, dict[str, Any]] = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
# Code that cannot change a result: how a stage is run, distributed and recorded; schemas of params.yaml and of the stages' JSON files; the
# registry of tasks (which names a length for the validations of stage train, and the main score).
CORE = ("compressed", "config", "errors", "files", "places", "processes", "project", "schema", "tasks", "yaml_io")
NO_RESULT = {
    "flows/places/ranks.py",
    *(f"flows/process/{name}.py" for name in ("child", "energy", "exits", "gpus", "notices", "paths", "progress", "runner", "signals")),
    *(f"flows/record/{name}.py" for name in ("alarms", "costs", "documents", "finished", "lineage", "run", "sending", "server", "usage")),
    *(f"transformer_core/{name}.py" for name in CORE),
    "transformer_core/corpus/cleaning/report.py",
    "transformer_core/corpus/sources/manifest.py",
    "transformer_core/training/store.py",
}
# Imported when needed: the served model's code by MLflow, and what the registry of tasks names.
LATER = {
    "flows/record/served_model.py",
    *(f"transformer_core/evaluation/{name}.py" for name in ("bleu", "error_rates", "metrics", "moses_bleu", "significance")),
    "transformer_core/baselines",
    "transformer_core/parsing",
    *(f"transformer_core/parsing/{name}.py" for name in ("brackets", "parse_scores", "parser", "task", "trees", "valid_trees")),
}
# Loaded by every stage, because section `model` is made from them; they are code of the stages that build models.
SIZES = {"transformer_core/presets.py", *(f"transformer_core/{room}sizes.py" for room in ("", "baselines/", "parsing/"))}
# Each stage in a child of one process that has imported what takes seconds.
LOADED = """
import importlib, json, os, sys
from pathlib import Path
import mlflow.pyfunc, numpy, pydantic, sacrebleu, torch
root = Path(sys.argv[1])
for stage in sys.argv[2:]:
    if os.fork() == 0:
        importlib.import_module(f"flows.stages.{stage}")
        files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        print(json.dumps([stage, [str(Path(f).relative_to(root)) for f in files if f and Path(f).is_relative_to(root)]]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, stage
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The modules of this repository that each stage imports."""
    command = [sys.executable, "-c", LOADED, str(ROOT), *STAGES]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120).stdout
    code = re.compile(r"(transformer_core|flows)/(?!.*__init__\.py)")
    return {stage: set(filter(code.match, names)) for stage, names in map(json.loads, output.splitlines())}


def test_a_stage_depends_on_the_code_it_imports(loaded: dict[str, set[str]]) -> None:
    assert set().union(*loaded.values()) >= NO_RESULT
    for stage, modules in loaded.items():
        deps = STAGES[stage]["deps"]
        needed = modules - NO_RESULT - (set() if "transformer_core/models/architectures.py" in modules else SIZES)
        missing = {name for name in needed if not any(name == dep or name.startswith(f"{dep}/") for dep in deps)}
        assert not missing, stage


def test_a_stage_depends_on_no_code_that_it_does_not_import(loaded: dict[str, set[str]]) -> None:
    for stage, modules in loaded.items():
        code = {dep for dep in STAGES[stage]["deps"] if dep.startswith(("transformer_core/", "flows/"))} - LATER
        assert {dep for dep in code if (ROOT / dep).suffix == ".py"} <= modules, stage
        # A folder may stand for its modules where the stage imports at least half of them.
        for folder in (dep for dep in code if not dep.endswith(".py")):
            inside = {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.py")} - {f"{folder}/__init__.py"}
            assert 2 * len(inside & modules) >= len(inside), (stage, folder)


def test_every_section_but_that_of_the_machine_is_tracked_in_the_order_of_the_stages_and_each_stage_tracks_its_own() -> None:
    tracked = dict.fromkeys(section for stage in STAGES.values() for section in stage["params"])
    assert [*tracked, "machine"] == list(Params.model_fields)
    assert all(name in stage["params"] for name, stage in STAGES.items() if name in tracked)


def test_the_stages_are_in_the_order_in_which_they_run() -> None:
    made: list[str] = []
    for stage in STAGES.values():
        needed = [path for path in stage["deps"] if path.startswith(("data/", "models/", "results/"))]
        assert not [path for path in needed if not path.startswith(tuple(made))]
        made += [path if isinstance(path, str) else next(iter(path)) for path in (*stage.get("outs", []), *stage.get("metrics", []))]


def test_nothing_is_kept_out_of_the_cache_and_the_registration_of_a_model_alone_out_of_the_run_cache() -> None:
    """DVC pushes no file with `cache: false`, not even with the run-cache: another machine could not restore its stage."""
    options = [out for stage in STAGES.values() for out in (*stage.get("outs", []), *stage.get("metrics", [])) if not isinstance(out, str)]
    assert options == [{"results/published.json": {"persist": True}}]


def test_no_setting_reaches_the_command_line_of_a_stage() -> None:
    """`${stage}` is the text in dvc.yaml itself. A path with a setting in it is a dependency, which no shell reads."""
    for name, stage in STAGES.items():
        assert stage["cmd"] == f"${{stage}} {name}"
    assert "stage" not in Params.model_fields


def test_dvc_restores_text_of_any_language_and_no_file_of_an_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Repo.init(no_scm=True)
    shutil.copy(ROOT / ".dvcignore", tmp_path)
    raw, stray = tmp_path / "raw", {".train.en.swp", "train.en~", "#train.en#"}
    raw.mkdir()
    names = {f"train.{language}" for language in ("en", "swa", "swe", "swh")}
    for name in names | stray:
        (raw / name).write_text(name)
    with Repo() as repo:
        repo.add("raw")
        shutil.rmtree(raw)
        repo.checkout()
    assert {path.name for path in raw.iterdir()} == names
