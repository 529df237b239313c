"""Which module may import what: the rooms of the house, held apart."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
MODULES = sorted(path.relative_to(REPOSITORY) for package in ("transformer_core", "flows") for path in (REPOSITORY / package).rglob("*.py"))

# In this order: a room imports from itself and from rooms on earlier lines.
ROOMS = [
    {"errors"},
    {"files", "processes"},
    {"config"},
    {"presets"},
    {"corpus", "models"},
    {"export"},
    {"training", "decoding", "evaluation"},
    {"recipes", "doctor", "data_plan"},
    {"cli"},
]
WHERE_PREFECT_IS_ALLOWED = {"flows/pipeline.py", "flows/cluster.py", "flows/sweep.py"}
WHERE_MLFLOW_IS_ALLOWED = {"flows/tracking.py", "flows/compare.py", "flows/registry.py", "flows/served_model.py", "flows/stages/publish.py"}


def imports_of(module: Path) -> set[str]:
    """Every dotted name a module imports, wherever in it; `from a import b` counts as a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((REPOSITORY / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            names.update({str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)})
    return names


def packages_of(module: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(module)}


def room_of(dotted: str) -> str:
    return dotted.split(".")[1]


def test_every_room_has_its_place() -> None:
    rooms = {path.stem for path in (REPOSITORY / "transformer_core").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__"} == set().union(*ROOMS)


@pytest.mark.parametrize("module", [module for module in MODULES if module.parts[0] == "transformer_core"], ids=str)
def test_the_core_knows_no_orchestrator_no_cache_and_no_tracker(module: Path) -> None:
    assert not packages_of(module) & {"prefect", "dvc", "mlflow", "flows"}


@pytest.mark.parametrize(
    "module", [module for module in MODULES if len(module.parts) > 1 and module.parts[0] == "transformer_core"], ids=str
)
def test_imports_within_the_core_run_one_way(module: Path) -> None:
    own = module.with_suffix("").parts[1]
    if own == "__init__":
        assert not imports_of(module)
        return
    place = next(index for index, rooms in enumerate(ROOMS) if own in rooms)
    allowed = {own}.union(*ROOMS[:place])
    assert {room_of(name) for name in imports_of(module) if name.startswith("transformer_core.")} <= allowed


def test_only_the_flow_imports_prefect() -> None:
    assert {module.as_posix() for module in MODULES if "prefect" in packages_of(module)} <= WHERE_PREFECT_IS_ALLOWED


def test_only_the_record_imports_mlflow() -> None:
    assert {module.as_posix() for module in MODULES if "mlflow" in packages_of(module)} <= WHERE_MLFLOW_IS_ALLOWED


@pytest.mark.parametrize("module", [module for module in MODULES if module.parts[:2] == ("flows", "stages")], ids=str)
def test_a_stage_imports_no_other_stage(module: Path) -> None:
    assert not {name for name in imports_of(module) if name.startswith("flows.stages.")}


def test_reading_a_corpus_needs_no_torch() -> None:
    corpus = [".".join(module.with_suffix("").parts) for module in MODULES if module.parts[:2] == ("transformer_core", "corpus")]
    loaded = run_python(f"import {', '.join(corpus)}, sys; print('torch' in sys.modules)", REPOSITORY)
    assert loaded.stdout == "False\n", loaded.stderr


def test_drawing_a_report_needs_no_torch() -> None:
    loaded = run_python("import transformer_core.evaluation.report, sys; print('torch' in sys.modules)", REPOSITORY)
    assert loaded.stdout == "False\n", loaded.stderr


def test_importing_does_no_work(tmp_path: Path) -> None:
    """Nothing printed, no file written, no thread started by importing any module but the flow's (Prefect starts threads of its own)."""
    named = [".".join(module.with_suffix("").parts) for module in MODULES if "prefect" not in packages_of(module)]
    code = f"import {', '.join(named)}, threading; assert threading.active_count() == 1, threading.enumerate()"
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(tmp_path.iterdir()) == []


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); {code}"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
