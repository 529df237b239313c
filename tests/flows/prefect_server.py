"""A Prefect server of its own with a home for the pipeline, its deployments and workers, and what is asked of it over the API."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import Artifact, FlowRun

from tests.clone import Clone
from tests.flows.servers import server, with_tables
from tests.waiting import free_port, wait_for


class PrefectServer:
    """A Prefect server with a home of its own, which can be killed and started again at its address."""

    def __init__(self, folder: Path) -> None:
        self._port, self._log = free_port(), folder / "server.log"
        self.address = f"http://127.0.0.1:{self._port}/api"
        self.environment = {"PREFECT_HOME": str(with_tables(folder)), "PREFECT_API_URL": self.address}
        self._running = ExitStack()

    def start(self) -> None:
        command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self._port)]
        self._running.enter_context(server(*command, log=self._log, url=f"{self.address}/health", **self.environment))

    def close(self) -> None:
        """Kill it."""
        self._running.close()


@contextmanager
def worker_at(home: Clone, log: Path, *options: str) -> Iterator[psutil.Process]:
    """A worker of pool `local`, or with other options; it has a minute to end."""
    command = [sys.executable, "-m", "prefect", "worker", "start", *(options or ("--pool", "local"))]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=home.root, env=home.environment)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start(client: SyncPrefectClient, **parameters: object) -> UUID:
    deployment = client.read_deployment_by_name("pipeline/pipeline")
    return client.create_flow_run_from_deployment(deployment.id, parameters=parameters).id


def ended(client: SyncPrefectClient, run: UUID) -> FlowRun:
    def look() -> FlowRun | None:
        found = client.read_flow_run(run)
        return found if found.state and found.state.is_final() else None

    return wait_for(look, "the run did not end", pause=0.5)


def lines(client: SyncPrefectClient, run: UUID) -> list[str]:
    found: list[str] = []
    while page := client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run])), limit=200, offset=len(found)):
        found += [log.message for log in page]
    return found


def artifacts(client: SyncPrefectClient, run: UUID) -> dict[str, Artifact]:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run])))
    return {str(one.key): one for one in found}
