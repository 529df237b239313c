"""A Prefect server of its own with a home for the pipeline, its deployments and workers, and what is asked of it over the API."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import psutil
import pytest
import requests
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import Artifact, FlowRun

from tests.clone import Clone, tiny_clone
from tests.waiting import wait_for


@contextmanager
def running(*command: str, log: Path, **settings: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is ended by its id, with a grace time."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **settings)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def home_of_the_pipeline(folder: Path) -> Clone:
    """A tiny clone with a DVC remote, a folder."""
    made = tiny_clone(folder / "home")
    short = {"updates": 20, "save_every": 10, "validate_every": 20, "bleu_sentences": 2, "precision": "float64"}
    short |= {"tokens_per_update": 640, "tokens_per_microbatch": 160}
    made.set({"train": short, "machine": {"devices": 1, "threads": 1}})  # The same sums wherever a rank runs.
    made.run("dvc", "remote", "add", "--default", "store", str(folder / "store"))
    made.commit("a remote")
    return made


@contextmanager
def server_for(home: Clone, folder: Path, host: str) -> Iterator[str]:
    """The loopback address of a Prefect server that listens on `host`, in the environment of what tests start too."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/api"
    here = {"PREFECT_HOME": str(folder), "PREFECT_API_URL": address, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    here |= {"TRANSFORMER_CLONES": str(folder / "clones")}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in here.items():
            patch.setenv(name, value)
        home.environment |= here
        server = [sys.executable, "-m", "prefect", "server", "start", "--host", host, "--port", str(port)]
        process = stack.enter_context(running(*server, log=folder / "server.log"))

        def healthy() -> bool:
            assert process.poll() is None, (folder / "server.log").read_text()
            try:
                return requests.get(f"{address}/health", timeout=5).ok
            except requests.RequestException:
                return False

        wait_for(healthy, "the server did not start", pause=0.5)
        yield address


@contextmanager
def worker_at(home: Clone, log: Path, *options: str, on: Sequence[str] = (), **environment: str) -> Iterator[psutil.Process]:
    """A worker of pool `local`, or as the options say; `on` is what runs a command on another machine."""
    command = [*on, sys.executable, "-m", "prefect", "worker", "start", *(options or ("--pool", "local"))]
    with running(*command, log=log, cwd=home.root, env={**home.environment, **environment}) as process:
        yield psutil.Process(process.pid)


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


def table(client: SyncPrefectClient, run: UUID) -> dict[str, str]:
    """What each stage did: ran, cached or failed."""
    return {row["stage"]: row["done"] for row in json.loads(str(artifacts(client, run)["pipeline-stages"].data))}
