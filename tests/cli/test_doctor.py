"""transformer-core doctor."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.conftest import Call
from tests.clone import git
from tests.serving import Quiet, serving
from transformer_core import doctor, recipes
from transformer_core.errors import ExitCode


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with nothing wrong with it, and an environment that names no service."""
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    git("init", "-q", at=tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "params.yaml").write_text(recipes.read("tatoeba"), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("capability", "remedy"), [((7, 5), ""), ((8, 0), "Install gcc and python3-dev.")])
def test_a_gpu_without_kernels_is_a_warning_whose_remedy_would_help(
    capability: tuple[int, int], remedy: str, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(name="a GPU", total_memory=2**34))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    monkeypatch.setattr("transformer_core.models.precision.can_compile", lambda _: False)
    found = finding(healthy, "compiler")
    assert (found.status, found.remedy) == ("warning", remedy)


def finding(folder: Path, name: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine(folder) if finding.name == name)


@pytest.mark.usefixtures("healthy")
def test_nothing_is_wrong_with_a_fresh_clone(call: Call) -> None:
    done = call("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(done.out)}
    assert (done.code, list(findings)) == (0, ["python", "torch", "cuda", "disk", "repository", "params", "mlflow", "prefect"])


@pytest.mark.usefixtures("healthy")
def test_a_driver_whose_gpus_cannot_be_used_is_a_warning(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = call("doctor")
    assert done.code == 0
    assert len([line for line in done.out.split("\n") if line.startswith("warning") and "cuda" in line]) == 1


def test_a_problem_is_a_line_with_a_remedy_and_its_exit_code(call: Call, healthy: Path) -> None:
    (healthy / "params.yaml").write_text(recipes.read("tatoeba").replace("  warmup: ", "  warmup: x  # "), encoding="utf-8")
    done = call("doctor")
    problems = [line for line in done.out.split("\n") if line.startswith("problem")]
    assert (done.code, len(problems)) == (78, 1)
    assert problems[0].endswith("train.warmup: must be a valid integer, got 'x'")


@pytest.mark.parametrize(
    ("missing", "detail"), [(".git", "git: not a git repository"), (".dvc", "no .dvc here"), ("dvc.yaml", "no dvc.yaml here")]
)
def test_a_folder_that_is_no_repository_is_a_problem(missing: str, detail: str, healthy: Path) -> None:
    (healthy / missing).rename(healthy / "away")
    found = finding(healthy, "repository")
    assert (found.status, found.exit_code) == ("problem", ExitCode.BAD_CONFIGURATION)
    assert found.detail.startswith(detail)
    assert found.remedy


@pytest.mark.parametrize(("name", "text"), [(".dvc/tmp/rwlock", ""), (".dvc/tmp/rwlock", '{"a": '), ("dvc.lock", "")])
def test_a_file_of_dvc_that_a_kill_left_damaged_is_a_problem(name: str, text: str, healthy: Path) -> None:
    (healthy / ".dvc/tmp").mkdir()
    for whole in (".dvc/tmp/rwlock", "dvc.lock"):
        (healthy / whole).write_text("{}", encoding="utf-8")
    assert finding(healthy, "repository").status == "ok"
    (healthy / name).write_text(text, encoding="utf-8")
    found = finding(healthy, "repository")
    assert (found.status, found.exit_code) == ("problem", ExitCode.BAD_DATA)
    assert found.detail == f"{healthy / name}: damaged, no DVC command can run"
    assert found.remedy == f"If no DVC command is running: rm {healthy / name}"


class Health(Quiet):
    """Answers /health; /login/health for whoever sends a login, which is me:secret."""

    def do_GET(self) -> None:
        login = f"Basic {base64.b64encode(b'me:secret').decode()}"
        self.send_response({"/health": 200, "/login/health": 200 if self.headers["Authorization"] == login else 401}.get(self.path, 500))
        self.end_headers()


@pytest.fixture
def service() -> Iterator[str]:
    with serving(Health) as host:
        yield f"http://{host}"


def test_services_that_answer_are_well(service: str, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{service.replace('//', '//me:secret@')}/login")
    monkeypatch.setenv("PREFECT_API_URL", service)
    assert finding(healthy, "mlflow").detail == f"{service}/login answers"
    assert finding(healthy, "prefect").detail == f"{service} answers"


@pytest.mark.parametrize(("name", "variable"), [("mlflow", "MLFLOW_TRACKING_URI"), ("prefect", "PREFECT_API_URL")])
def test_a_service_that_does_not_answer_well_is_a_problem(
    name: str, variable: str, service: str, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, code, detail in (
        ("localhost:5000", 78, ""),
        ("http://me:secret@127.0.0.1:9", 69, "http://127.0.0.1:9: no connection"),  # Nothing listens there.
        ("http://127.0.0.1:50o0", 69, "http://127.0.0.1:50o0: "),
        (f"{service}/broken", 69, f"{service}/broken: 500 "),
        (f"{service}/login", 69, f"{service}/login: 401 "),
        (f"{service.replace('//', '//me:wrong@')}/login", 69, f"{service}/login: 401 "),
    ):
        monkeypatch.setenv(variable, address)
        found = finding(healthy, name)
        assert (found.status, found.exit_code) == ("problem", code)
        assert found.detail.startswith(detail)
        assert found.remedy
