"""Fixtures of tests of several components: isolation from the user's own Prefect, MLflow and DVC, and one Prefect server for all."""

import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).parents[1]
NOT_INHERITED = (
    "MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_API_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL", "TRANSFORMER_MIRROR", "TRANSFORMER_STATE", "DVC_EXP_NAME", "DVC_ROOT", "DVC_STAGE",
    "PYTHONDONTWRITEBYTECODE",  # A child would compile all that it imports, each time anew.
    "MAKEFLAGS", "MAKELEVEL", "MFLAGS",
)  # fmt: skip
# A thread a process: several processes share the cores, and torch's threads would wait for each other. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hypothesis fails an example that takes longer than 200 ms, which on a busy machine says nothing. `make test-all` tries more examples.
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.register_profile("fast", deadline=None, max_examples=20)
settings.load_profile("fast")
# With STRICT=1 a test is skipped for one of these reasons or fails: what continuous integration cannot have, or need not.
MAY_SKIP = {
    "needs a GPU": "it has none; kernels run in Triton's interpreter by make test-kernels",
    "needs Triton": "make test-kernels runs these",
    "this CPU has no bf16": "hosted machines differ",
    "this system does not let every user mount": "a container may not",
    "no network namespaces here": "a container may not",
    "no Chromium": "a package of the system",
    "MeCab's dictionary is not installed: pip install 'sacrebleu[ko]'": "110 MB",
    "kubectl merges the patch": "a program of its own",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; of files shared out to several processes, those with slow tests come first."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for_gpu = [item for item in items if item.get_closest_marker("gpu") or (item.get_closest_marker("kernel") and not interpreted)]
    if not for_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in for_gpu:
            reason = "needs a GPU" if item.get_closest_marker("gpu") else "needs a GPU or make test-kernels"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With STRICT=1, fail a test that is skipped for want of something that should be there."""
    report = yield
    if report.skipped and os.environ.get("STRICT") == "1" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.startswith(tuple(MAY_SKIP)):
            report.outcome, report.longrepr = "failed", f"STRICT=1 and skipped: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Homes of their own for the tools, in this process and in those that tests start, which also find the packages from any folder."""
    home = tmp_path_factory.mktemp("homes")
    # A shell starts background commands with SIGINT ignored, and they hand that on; what tests start must hear Ctrl-C all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        for name in NOT_INHERITED:
            patch.delenv(name, raising=False)
        patch.setenv("PREFECT_HOME", str(home / "prefect"))
        patch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        # As prefect.toml has it, which tests in folders of their own do not meet; Prefect's 20 are too few on a busy machine.
        patch.setenv("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("DVC_GLOBAL_CONFIG_DIR", str(home / "dvc"))
        patch.setenv("DVC_SITE_CACHE_DIR", str(home / "dvc-site"))
        patch.setenv("DVC_NO_ANALYTICS", "1")
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def default_params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with the params.yaml of the default recipe."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(REPOSITORY / "transformer_core/recipes/tatoeba.yaml", "params.yaml")


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a script of the shell under a name, in a folder that is the first of $PATH."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def write(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)

    return write


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch has one thread in this process, and as many as before when the test ends."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory, _isolated: None) -> Iterator[str]:
    """The address of a Prefect server, started once (seconds) and used by every flow in this process."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from tests.flows.prefect_server import PrefectServer

    server = PrefectServer(tmp_path_factory.mktemp("prefect-server"))
    with closing(server), temporary_settings({PREFECT_API_URL: server.address}):
        server.start()
        yield server.address


@pytest.fixture(scope="session")
def _empty_mlflow_record(tmp_path_factory: pytest.TempPathFactory, _isolated: None) -> Path:
    """A database with MLflow's tables, made once: that takes seconds."""
    import mlflow

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _empty_mlflow_record: Path) -> str:
    """A folder of its own as the working directory, and the address of an empty MLflow record in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(_empty_mlflow_record, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"
