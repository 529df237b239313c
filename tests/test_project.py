"""`transformer-core new`: a project around the installed packages, from a clone and from a built wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.clone import ROOT, Clone, write_corpora
from tests.test_docs import FILES
from transformer_core import project
from transformer_core.cli import main
from transformer_core.files import sha256_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project made from this clone."""
    assert main(["new", str(tmp_path / "project")]) == 0
    return tmp_path / "project"


def test_a_project_has_the_files_of_the_repository_and_no_code(folder: Path) -> None:
    for name in set(project.FILES) - {"dvc.yaml"}:
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert (folder / "params.yaml").read_bytes() == (ROOT / "transformer_core/recipes/tatoeba.yaml").read_bytes()
    assert (folder / ".git").is_dir()
    assert not list(folder.rglob("*.py"))


def test_a_stage_of_a_project_depends_on_a_list_of_its_installed_code(folder: Path) -> None:
    ours, theirs = (YAML(typ="safe").load(root / "dvc.yaml") for root in (ROOT, folder))
    for name, stage in ours["stages"].items():
        listed = dict(reversed(line.split("  ")) for line in (folder / f"installed/{name}.sha256").read_text(encoding="utf-8").splitlines())
        assert all(sha256_of(ROOT / path) == checksum for path, checksum in listed.items())
        code = [path for path in stage["deps"] if path.startswith(("transformer_core/", "flows/"))]
        assert all(any(path == listed_path or listed_path.startswith(f"{path}/") for listed_path in listed) for path in code)
        stage["deps"] = [*(path for path in stage["deps"] if path not in code), f"installed/{name}.sha256"]
        assert sorted(theirs["stages"][name].pop("deps")) == sorted(stage.pop("deps"))
    assert theirs == ours


def test_files_of_the_user_are_kept_and_lists_of_code_are_written_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lists = {path: path.read_bytes() for path in (folder / "installed").iterdir()}
    for name in ("params.yaml", "prefect.yaml", "installed/train.sha256"):
        (folder / name).write_text("mine\n", encoding="utf-8")
    (folder / "dvc.yaml").unlink()
    capsys.readouterr()
    assert main(["new", str(folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(f"{folder}/prefect.yaml: kept, although it differs from the package's. ")
    assert shown[1:] == [f"{folder} is a project. Next, in that folder: dvc repro"]
    assert (folder / "params.yaml").read_text(encoding="utf-8") == "mine\n"
    assert "installed/train.sha256" in (folder / "dvc.yaml").read_text(encoding="utf-8")
    assert {path: path.read_bytes() for path in (folder / "installed").iterdir()} == lists


def test_a_clone_or_no_git_makes_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["new", str(tmp_path / "file")]) == 78
    assert main(["new", str(ROOT)]) == 78
    assert "holds the code itself" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["new", str(tmp_path / "project")]) == 69
    assert capsys.readouterr().err == "git is not installed. Install git: DVC needs it.\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of this clone."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in FILES:
        if not name.startswith(("docs/", "tests/", "benchmarks/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", target, source], check=True)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel in it, which finds the packages that it needs in the one of the tests."""
    root = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root], check=True)
    (site,) = root.glob("lib/python*/site-packages")
    # A line of a .pth file comes after the environment's own packages, and .pth files of that folder (an editable install) are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", root / "bin/python"]
    subprocess.run([*pip, "install", "--ignore-installed", "--no-deps", "--no-index", wheel], check=True)
    return root


@pytest.mark.slow  # about 15 seconds
def test_a_wheel_has_all_files_of_the_packages_and_of_a_project(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in FILES if name.startswith(("transformer_core/", "flows/"))} <= names
    assert {f"transformer_core/{project.PACKAGED}/{name}" for name in project.FILES} <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"transformer_core", "flows"}


@pytest.mark.slow  # about 30 seconds
def test_the_stages_run_in_a_project_made_by_an_installed_wheel(environment: Path, tmp_path: Path) -> None:
    outside = Clone(tmp_path)  # Outside a clone, with that environment active.
    outside.environment["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    del outside.environment["PYTHONPATH"]
    assert outside.run("transformer-core", "new", "project") == "project is a project. Next, in that folder: dvc repro\n"
    outside.root /= "project"
    assert str(environment) in outside.run("python", "-c", "import flows, transformer_core as core; print(core.__file__, flows.__file__)")
    write_corpora(outside.root / "corpora")
    outside.set({"download": {"corpus": "tiny"}, "bpe": {"vocab_size": 400}})
    stages = ["download", "clean", "bpe", "binarize"]
    outside.run("python", "-m", "dvc", "repro", *stages)
    outside.commit("The first stages")
    assert outside.run("python", "-m", "dvc", "status", *stages) == "Data and pipelines are up to date.\n"
    assert outside.run("git", "status", "--porcelain") == ""
    (outside.root / "installed/binarize.sha256").write_text("another version\n", encoding="utf-8")
    status = " ".join(outside.run("python", "-m", "dvc", "status", *stages).split())
    assert status == "binarize: changed deps: modified: installed/binarize.sha256"
