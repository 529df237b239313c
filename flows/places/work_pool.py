"""A Prefect work pool: the flow `stage`, which a worker that sees this folder runs, and what starts it and asks for its state."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, WorkerStatus
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling, Failed

from flows.places.jobs import Job, Seen, run_as_node
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line
from transformer_core.places import WorkPool

FLOW = "stage"


@flow(name=FLOW, description="One stage of a pipeline that runs elsewhere, in the same folder.")
def stage(name: str, folder: str, log: str) -> State[Any] | int:
    """Run one stage on this machine, in a folder on storage that it shares with the pipeline.

    Args:
        name: name of the stage.
        folder: the repository.
        log: file in it that receives the output, too.
    """
    if not Path(folder).is_dir():
        return Failed(message=f"{folder}: no such folder on this machine: it must be on shared storage")
    code = run_as_node(name, Path(folder), Path(log), get_run_logger().info)
    return Failed(message=f"{name} (exit code {code})") if code else code


class PrefectPool:
    """The runs of the flow `stage` in a work pool."""

    def __init__(self, place: WorkPool, job: Job) -> None:
        self._pool, self._job, self._tag = place.pool, job, f"job={job.name}"
        if not PREFECT_API_URL.value():
            raise configuration_error("machine.places: PREFECT_API_URL is not set", "A work pool needs a Prefect server.")

    def find(self) -> str | None:
        tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[self._tag]))
        with prefect_client() as client:
            runs = client.read_flow_runs(flow_run_filter=tagged)
        return next((str(run.id) for run in runs if run.state and not run.state.is_final()), None)

    def submit(self) -> str:
        """Start a run in the pool. Raises `UserError` (78): the pool or the deployment does not exist."""
        with prefect_client() as client:
            deployment = self._deployment(client)
            parameters = {"name": self._job.stage, "folder": str(Path.cwd()), "log": str(self._job.log)}
            started = run_deployment(deployment, parameters=parameters, timeout=0, tags=[self._tag], flow_run_name=self._job.name)
        return str(cast(FlowRun, started).id)

    def _deployment(self, client: SyncPrefectClient) -> UUID:
        in_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[self._pool]))
        found = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW])), work_pool_filter=in_pool)
        if not found:
            message = f"machine.places: no deployment of the flow {FLOW} is on work pool {self._pool!r}"
            remedy = f"Create the pool (prefect work-pool create {self._pool} --type process), name it for {FLOW} in prefect.yaml, then: "
            raise configuration_error(message, f"{remedy}prefect --no-prompt deploy --all")
        return found[0].id

    def look(self, number: str) -> Seen:
        """Return what the run does; of one that waits, how many workers the pool has."""
        with prefect_client() as client:
            state = client.read_flow_run(UUID(number)).state
            if state is None or state.is_scheduled() or state.is_pending():
                workers = client.read_workers_for_work_pool(self._pool)
                online = sum(worker.status == WorkerStatus.ONLINE for worker in workers)
                return Seen("waiting", f"pool {self._pool} has {online} workers online")
            return Seen("ended" if state.is_final() else "running")

    def stop(self, number: str, running: bool) -> None:
        del running
        with prefect_client() as client:
            client.set_flow_run_state(UUID(number), Cancelling())


@contextmanager
def prefect_client() -> Iterator[SyncPrefectClient]:
    """Yield a client of the configured server. Raises `UserError`: 69 if Prefect is away, 78 if it refuses."""
    try:
        with get_client(sync_client=True) as client:
            yield client
    except httpx.HTTPStatusError as error:
        if error.response.is_server_error:
            raise UserError(f"Prefect is away: {first_line(error)}", "", ExitCode.UNAVAILABLE) from error
        raise configuration_error(f"Prefect refuses: {first_line(error)}") from error
    except httpx.HTTPError as error:
        raise UserError(f"Prefect is away: {first_line(error)}", "", ExitCode.UNAVAILABLE) from error
