"""Fixtures of tests with a Prefect server and a worker: one home, server and set of deployments a file of tests."""

from collections.abc import Iterator

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.clone import Clone
from tests.flows.cluster import home_of_the_pipeline, server_for


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """The clone in which the pipeline runs."""
    return home_of_the_pipeline(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, home: Clone) -> Iterator[str]:
    """The address of a Prefect server of its own, on the loopback unless the module names another HOST."""
    host = getattr(request.module, "HOST", "127.0.0.1")
    with server_for(home, tmp_path_factory.mktemp("prefect"), host) as address:
        yield address


@pytest.fixture(scope="module")
def client(api: str) -> Iterator[SyncPrefectClient]:
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        yield client


@pytest.fixture(scope="module")
def deployed(home: Clone, client: SyncPrefectClient) -> str:
    """The output of the deployment of prefect.yaml."""
    client.create_work_pool(WorkPoolCreate(name="local", type="process"))
    return home.run("prefect", "--no-prompt", "deploy", "--all")
