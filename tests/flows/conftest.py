"""Fixtures of several files: a model directory, a client of an empty MLflow record, and a Prefect server with the pipeline deployed."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.record.server import connect
from tests.clone import Clone, tiny_clone
from tests.flows.prefect_server import PrefectServer


@pytest.fixture
def client(mlflow_store: str) -> MlflowClient:
    return connect(mlflow_store)


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with random weights; a test that changes it takes a copy."""
    from tests.flows.publishing import random_model

    return random_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """The clone in which the pipeline runs: a tiny one with a DVC remote, a folder."""
    folder = tmp_path_factory.mktemp("cluster")
    made = tiny_clone(folder / "home")
    # In float64, so that sums are the same wherever a rank runs.
    short = {"updates": 20, "save_every": 10, "validate_every": 20, "bleu_sentences": 2, "precision": "float64"}
    made.set({"train": short})
    made.run("dvc", "remote", "add", "--default", "store", str(folder / "store"))
    made.commit("a remote")
    return made


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, home: Clone) -> Iterator[str]:
    """The loopback address of a Prefect server of its own, in the environment of what tests start too."""
    server = PrefectServer(tmp_path_factory.mktemp("prefect"))
    here = {**server.environment, "PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5"}
    here["PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS"] = "5"
    with pytest.MonkeyPatch.context() as patch, closing(server):
        for name, value in here.items():
            patch.setenv(name, value)
        home.environment |= here
        server.start()
        yield server.address


@pytest.fixture(scope="module")
def prefect(api: str) -> Iterator[SyncPrefectClient]:
    """A client of that server."""
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        yield client


@pytest.fixture(scope="module")
def deployed(home: Clone, prefect: SyncPrefectClient) -> str:
    """The output of the deployment of prefect.yaml."""
    prefect.create_work_pool(WorkPoolCreate(name="local", type="process"))
    return home.run("prefect", "--no-prompt", "deploy", "--all")
