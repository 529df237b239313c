"""Which module may import what."""

import ast
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.clone import ROOT

MODULES = sorted(path.relative_to(ROOT) for package in ("transformer_core", "flows") for path in (ROOT / package).rglob("*.py"))

# In this order: a component imports from itself and from components on earlier lines.
COMPONENTS = {
    "transformer_core": [
        {"errors"},
        {"compressed", "files", "processes"},
        {"schema", "yaml_io", "external"},
        {"places", "tasks"},
        {"sizes"},
        {"presets"},
        {"config"},
        {"corpus", "models"},
        {"pictures"},
        {"baselines"},
        {"decoding", "evaluation"},
        {"training", "parsing"},
        {"recipes", "data_plan"},
        {"tuning"},
        {"project"},
        {"doctor"},
        {"cli"},
    ],
    "transformer_core.corpus": [{"text"}, {"placeholders", "statistics"}, {"sources", "cleaning", "tokens"}],
    "flows": [
        {"process"},
        {"record", "dvc"},
        {"places"},
        {"stages", "sweeps"},
        {"new_data"},
        {"pipeline", "probes", "retention", "runs_page", "scores", "status", "sweep", "tracking", "translate", "watch"},
        {"compare", "tune"},
    ],
}
WITH_MLFLOW = ("compare", "stages/publish", *(f"record/{name}" for name in ("registry", "sending", "served_model", "server")))
WITH_PREFECT = ("pipeline", "probes", "watch", "places/work_pool")


@cache
def imports_of(module: Path) -> set[str]:
    """Every dotted name a module imports, wherever in it; `from a import b` counts as a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            names.update({str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)})
    return names


def packages_of(module: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(module)}


def test_every_room_has_its_place() -> None:
    for package in COMPONENTS:
        folder = ROOT.joinpath(*package.split("."))
        components = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert components - {"__init__"} == set().union(*COMPONENTS[package]), package


def test_imports_run_one_way() -> None:
    upward = []
    for package, order in COMPONENTS.items():
        depth = len(package.split("."))
        for module in (module for module in MODULES if ".".join(module.parts[:depth]) == package):
            own = module.with_suffix("").parts[depth]
            place = next((index for index, components in enumerate(order) if own in components), len(order))
            imported = {name.split(".")[depth] for name in imports_of(module) if name.startswith(f"{package}.")}
            upward += [f"{module} imports {other}" for other in sorted(imported - {own}.union(*order[:place]))]
    assert not upward


def test_the_registry_alone_names_the_baselines() -> None:
    baselines = ROOT / "transformer_core" / "baselines"
    naming = {ROOT / module for module in MODULES if "core.baselines" in (ROOT / module).read_text(encoding="utf-8")}
    assert naming - set(baselines.iterdir()) == {ROOT / "transformer_core" / "sizes.py"}


def test_no_room_imports_a_task_in_a_package_of_its_own() -> None:
    package = "transformer_core.parsing"
    named = {module.as_posix() for module in MODULES if any(name.startswith(package) for name in imports_of(module))}
    assert named
    assert all(name.startswith("transformer_core/parsing/") for name in named)


def test_only_the_flow_imports_prefect_only_the_record_mlflow_and_the_core_no_cache_and_no_flow() -> None:
    assert not [module for module in MODULES if module.parts[0] != "flows" and packages_of(module) & {"dvc", "flows"}]
    for package, allowed in (("prefect", WITH_PREFECT), ("mlflow", WITH_MLFLOW)):
        importing = {module.as_posix() for module in MODULES if package in packages_of(module)}
        assert importing == {f"flows/{module}.py" for module in allowed}


def test_a_stage_imports_no_other_stage() -> None:
    stages = [module for module in MODULES if module.parts[:2] == ("flows", "stages")]
    assert len(stages) > 9
    assert not {module for module in stages if any(name.startswith("flows.stages.") for name in imports_of(module))}


def test_importing_does_no_work_and_corpus_and_report_need_no_torch(tmp_path: Path) -> None:
    """Nothing is printed, no file written, no thread started by importing any module but the flow's (Prefect starts threads of its own)."""
    others = {"prefect"} if find_spec("triton") else {"prefect", "triton"}  # Triton comes with a torch for GPUs alone.
    named = [".".join(module.with_suffix("").parts) for module in MODULES if not others & packages_of(module)]
    light = [name for name in named if name.startswith("transformer_core.corpus")] + ["transformer_core.evaluation.report"]
    code = f"""
import sys, threading
sys.path.insert(0, {str(ROOT)!r})
import {", ".join(light)}
assert not {{"torch", "matplotlib", "pandas"}} & set(sys.modules)
import {", ".join(named)}
assert threading.active_count() == 1, threading.enumerate()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_machine_needs_few_packages_to_train_and_decode() -> None:
    """Those that benchmarks/gpu.sh names beside torch; none of the pipeline's."""
    code = """
import sys
import transformer_core.training.trainer, transformer_core.decoding.translator, transformer_core.models.architectures
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    needed = {package for module in MODULES for package in packages_of(module)} & set(done.stdout.split()) - set(sys.stdlib_module_names)
    wheels = {"pydantic", "pydantic_core", "ruamel"}  # With what these need, those of benchmarks/gpu-wheels.sh.
    assert needed - {"transformer_core"} == wheels | {"numpy", "safetensors", "sentencepiece", "torch", "tqdm"}
