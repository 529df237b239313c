"""pyproject.toml, constraints.txt, Makefile, Dockerfile, .ci/run and the files for contributors agree with the code and with each other."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from tests.clone import ROOT, git
from tests.test_walls import MODULES, packages_of

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
OPTIONAL = [Requirement(line) for extra in ("shortlist", "langid", "hub", "dask", "s3") for line in EXTRAS[extra]]
REQUIRED = [Requirement(line) for line in PYPROJECT["project"]["dependencies"]]
FOR_DEVELOPERS = [Requirement(line) for line in EXTRAS["dev"]]
PINS = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
NOT_IMPORTED = {"fastapi"}  # Bounded for prefect's sake.
# Released with pydantic, for exactly one version of it; what Prefect's client and requests are made of, whose errors they raise.
PARTS_OF_OTHERS = {"pydantic_core", "httpx", "urllib3", "triton"}  # Triton is of a torch for GPUs alone.


def test_every_pin_is_a_public_version_and_within_the_bounds_of_its_dependency() -> None:
    assert [line for line in PINS if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9a-z.]*", line)] == []
    versions = {str(canonicalize_name(name)): version for name, version in (line.split("==") for line in PINS)}
    assert [str(one) for one in REQUIRED + FOR_DEVELOPERS if not one.specifier.contains(versions[canonicalize_name(one.name)])] == []


def test_what_is_imported_is_declared_and_the_reverse() -> None:
    imported = set().union(*map(packages_of, MODULES)) - set(sys.stdlib_module_names) - {"transformer_core", "flows"}
    declared = {canonicalize_name(requirement.name) for requirement in REQUIRED + OPTIONAL}
    distributions = {name: {canonicalize_name(of) for of in packages} for name, packages in packages_distributions().items()}
    assert {name for name in imported if not declared & distributions.get(name, set())} - PARTS_OF_OTHERS == set()
    assert declared - set().union(*(distributions.get(name, set()) for name in imported)) == NOT_IMPORTED


def make(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
        os.utime(tmp_path / name, (1_000, 1_000))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    return tmp_path


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_requirement_is_installed_once_and_again_when_it_changed(changed: str, installed: Path) -> None:
    assert not [target for target in ("repro", "test", "test-all") if "pip install" in make(installed, "--dry-run", target)]
    os.utime(installed / ".venv" / ".installed", (2_000, 2_000))
    (installed / changed).touch()
    assert "pip install" in make(installed, "--dry-run", "repro")


def test_an_old_python_is_refused_in_one_line(installed: Path) -> None:
    (installed / ".venv" / ".installed").unlink()
    old = installed / "old_python"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 10, 1); $2"\n', encoding="utf-8")
    old.chmod(0o755)
    said = make(installed, f"PYTHON={old}", "install")
    assert said.splitlines()[0] == "Python 3.11 or later is needed: make PYTHON=python3.11 ..."
    assert not (installed / ".venv" / ".installed").exists()


def test_an_image_is_installed_without_packages_for_developers_and_with_those_that_its_build_names(installed: Path) -> None:
    arguments = re.findall(r"^ARG (EXTRAS|PACKAGES)=(.*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert arguments == [("EXTRAS", ""), ("PACKAGES", "")]
    command = ["make", "--dry-run", "--always-make", "install"]
    for chosen, end in (({"EXTRAS": "", "PACKAGES": "dvc[s3] dvc[ssh]"}, "'.' 'dvc[s3]' 'dvc[ssh]'"), ({}, "'.[dev]'")):
        environment = {name: value for name, value in os.environ.items() if name not in {"EXTRAS", "PACKAGES"}} | chosen
        said = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=True).stdout
        assert re.search(rf"pip install .* --editable {re.escape(end)}\s*$", said, re.MULTILINE), said


def test_an_image_is_built_from_the_tracked_files_alone(tmp_path: Path, program: Callable[[str, str], None]) -> None:
    """A program in the place of docker keeps the context that `make image` gives it; files with credentials lie in the folder."""
    root = tmp_path / "project"
    (root / ".dvc").mkdir(parents=True)
    for name in ("Makefile", "Dockerfile", ".dockerignore", ".gitattributes", ".dvc/.gitignore"):
        (root / name).write_bytes((ROOT / name).read_bytes())
    git("init", "-q", at=root)
    git("add", "--all", at=root)
    git("commit", "-q", "-m", "a", at=root)
    git("remote", "add", "origin", "https://planted-token@git.example/a", at=root)
    for name in (".dvc/config.local", ".env", "key.pem"):
        (root / name).write_text("planted-token")
    program("docker", f"[ \"$*\" = 'build --tag transformer-pipeline -' ] && cat > {tmp_path}/context.tar")
    subprocess.run(["make", "image"], cwd=root, check=True, capture_output=True)
    with tarfile.open(tmp_path / "context.tar") as context:
        assert {entry.name for entry in context if entry.isfile()} == {"Makefile", "Dockerfile", ".gitattributes", ".dvc/.gitignore"}
    assert b"planted-token" not in (tmp_path / "context.tar").read_bytes()
    # A `docker build .` in a folder would send everything that is not ignored.
    assert (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()[-1] == "**"


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_there_is_one_version() -> None:
    changes = re.findall(r"^## \[(.+)\] - ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert YAML(typ="safe").load(ROOT / "CITATION.cff")["version"] == changes[0] == PYPROJECT["project"]["version"]
