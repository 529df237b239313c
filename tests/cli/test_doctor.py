"""transformer-core doctor."""

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
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


# Whether torch sees the GPUs, their capability, and the remedy: another torch, none before Ampere, which Triton needs, or a compiler.
GPUS = [(False, (8, 0), "Look at the output of nvidia-smi"), (True, (7, 5), ""), (True, (8, 0), "Install gcc and python3-dev.")]


@pytest.mark.parametrize(("seen", "capability", "remedy"), GPUS)
def test_gpus_that_cannot_be_used_to_the_full_are_a_warning_whose_remedy_would_help(
    seen: bool, capability: tuple[int, int], remedy: str, healthy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: seen)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(name="a GPU", total_memory=2**34))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: capability)
    monkeypatch.setattr("transformer_core.models.precision.can_compile", lambda _: False)
    found = finding(healthy, "cuda")
    assert (found.status, bool(found.remedy)) == ("warning", bool(remedy))
    assert found.remedy.startswith(remedy)


def finding(folder: Path, name: str) -> doctor.Finding:
    return next(finding for finding in doctor.examine(folder) if finding.name == name)


@pytest.mark.usefixtures("healthy")
def test_nothing_is_wrong_with_a_fresh_clone(call: Call) -> None:
    done = call("doctor", "--json")
    checks = ["python", "torch", "cuda", "disk", "repository", "params", "state", "dvc", "mlflow", "prefect"]
    assert (done.code, [finding["name"] for finding in json.loads(done.out)]) == (0, checks)


def test_a_problem_is_a_line_with_a_remedy_and_its_exit_code(call: Call, healthy: Path) -> None:
    (healthy / "params.yaml").write_text(recipes.read("tatoeba").replace("  warmup: ", "  warmup: x  # "), encoding="utf-8")
    done = call("doctor")
    problems = [line for line in done.out.split("\n") if line.startswith("problem")]
    assert (done.code, len(problems)) == (78, 1)
    assert problems[0].endswith("train.warmup: must be a valid integer, got 'x'")


def test_a_folder_that_is_no_repository_is_a_problem(healthy: Path) -> None:
    for missing, detail in (("dvc.yaml", "no dvc.yaml here"), (".dvc", "no .dvc here"), (".git", "git: not a git repository")):
        (healthy / missing).rename(healthy / f"away-{missing}")
        found = finding(healthy, "repository")
        assert (found.status, found.exit_code, bool(found.remedy)) == ("problem", ExitCode.BAD_CONFIGURATION, True)
        assert found.detail.startswith(detail)


class Service(Quiet):
    """Answers the requests that need a login for whoever sends it, me:secret, or the token secret; below /broken nobody."""

    def answer(self) -> None:
        login = f"Basic {base64.b64encode(b'me:secret').decode()}"
        known = 200 if self.headers["Authorization"] in (login, "Bearer secret") else 401
        self.reply(500 if self.path.startswith("/broken") else known)

    do_GET = do_POST = answer


@pytest.fixture
def service() -> Iterator[str]:
    with serving(Service) as host:
        yield f"http://{host}"


def test_services_that_know_the_login_are_well(service: str, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"{service}/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:secret")
    assert finding(healthy, "prefect").detail == f"{service}/api answers"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", service.replace("//", "//me:secret@"))
    assert finding(healthy, "mlflow").detail == f"{service} answers"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", service)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    assert finding(healthy, "mlflow").detail == f"{service} answers"
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    assert finding(healthy, "mlflow").detail == f"{service} answers"


@pytest.mark.parametrize(("name", "variable"), [("mlflow", "MLFLOW_TRACKING_URI"), ("prefect", "PREFECT_API_URL")])
def test_a_faulty_service_is_a_problem(name: str, variable: str, service: str, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers answer /health to anybody."""
    for address, code, detail in (
        (service, 78, f"{service}: the login is missing or wrong (401)"),
        (service.replace("//", "//me:wrong@"), 78, f"{service}: the login is missing or wrong (401)"),
        ("localhost:5000", 78, ""),
        ("http://me:secret@127.0.0.1:9", 69, "http://127.0.0.1:9: no connection"),  # Nothing listens there.
        ("http://127.0.0.1:50o0", 69, "http://127.0.0.1:50o0: "),
        (f"{service}/broken", 69, f"{service}/broken: 500 "),
    ):
        monkeypatch.setenv(variable, address)
        found = finding(healthy, name)
        assert (found.status, found.exit_code) == ("problem", code)
        assert found.detail.startswith(detail)
        assert found.remedy


def test_the_remote_of_dvc_is_written_and_read(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    shutil.rmtree(healthy / ".dvc")
    store = tmp_path_factory.mktemp("store")
    for arguments in (("init", "-q"), ("remote", "add", "-q", "--default", "store", str(store))):
        subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=healthy, check=True)
    assert finding(healthy, "dvc").status == "ok"
    assert not [path for path in store.rglob("*") if path.is_file()]
    shutil.rmtree(store)
    store.write_text("a file", encoding="utf-8")
    found = finding(healthy, "dvc")
    assert (found.status, found.exit_code) == ("problem", ExitCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("mounted", "state", "mlflow"),
    [("nfs4 rw", "ok", "warning"), ("nfs rw,nolock", "warning", "warning"), ("lustre localflock", "warning", "ok"), ("ext4", "ok", "ok")],
)
def test_local_locks_and_sqlite_on_nfs_warn(mounted: str, state: str, mlflow: str, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSFORMER_STATE", raising=False)
    monkeypatch.chdir(healthy)
    kind, _, options = mounted.partition(" ")
    mounts = [SimpleNamespace(mountpoint=path, fstype=kind, opts=options) for path in ("/", str(healthy))]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounts)
    found = {finding.name: finding.status for finding in doctor.examine(Path())}
    assert (found["state"], found["mlflow"]) == (state, mlflow)
    assert not list((healthy / ".state").iterdir())


def test_what_a_cluster_needs_is_checked_when_asked_for(call: Call, healthy: Path, program: Callable[[str, str], None]) -> None:
    program("sbatch", 'echo "sbatch: Job 7 to start now: $*" >&2')
    text = recipes.read("tatoeba").replace("places: {}", "places: {train: {on: slurm, time: 24:00:00, options: {account: us}}}")
    (healthy / "params.yaml").write_text(text, encoding="utf-8")
    findings = {finding["name"]: finding for finding in json.loads(call("doctor", "--cluster", "--json").out)}
    assert [findings[name]["status"] for name in ("artifacts", "slurm")] == ["ok", "ok"]
    assert findings["slurm"]["detail"] == "sbatch: Job 7 to start now: --test-only --nodes=1 --time=24:00:00 --account=us --wrap=true"
