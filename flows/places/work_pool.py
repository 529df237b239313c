"""A Prefect work pool: the flow `stage`, which a worker that sees this folder runs, and what starts it and asks for its state."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, State, WorkerStatus
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling, Failed

from flows.places.jobs import Scheduler, Seen, run_as_node
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


class PrefectPool(Scheduler):
    """The runs of the flow `stage` in a work pool."""

    place: WorkPool

    def find(self) -> str | None:
        if not PREFECT_API_URL.value():
            raise configuration_error("machine.places: PREFECT_API_URL is not set", "A work pool needs a Prefect server.")
        with prefect_client() as client:
            runs = client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"tags": {"all_": [f"job={self.job.name}"]}}))
        return next((str(run.id) for run in runs if run.state and not run.state.is_final()), None)

    def submit(self) -> str:
        """Start a run in the pool. Raises `UserError` (78): the pool or the deployment does not exist."""
        pool, job = self.place.pool, self.job
        flows, pools = FlowFilter.model_validate({"name": {"any_": [FLOW]}}), WorkPoolFilter.model_validate({"name": {"any_": [pool]}})
        with prefect_client() as client:
            found = client.read_deployments(flow_filter=flows, work_pool_filter=pools)
            if not found:
                message = f"machine.places: no deployment of the flow {FLOW} is on work pool {pool!r}"
                remedy = f"Create the pool (prefect work-pool create {pool} --type process), name it for {FLOW} in prefect.yaml, then: "
                raise configuration_error(message, f"{remedy}prefect --no-prompt deploy --all")
            parameters = {"name": job.stage, "folder": str(Path.cwd()), "log": str(job.file("log"))}
            started = run_deployment(found[0].id, parameters=parameters, timeout=0, tags=[f"job={job.name}"], flow_run_name=job.name)
        return str(cast(FlowRun, started).id)

    def look(self, number: str) -> Seen:
        """Return what the run does; of one that waits, how many workers the pool has."""
        with prefect_client() as client:
            state = client.read_flow_run(UUID(number)).state
            if state is None or state.is_scheduled() or state.is_pending():
                online = sum(one.status == WorkerStatus.ONLINE for one in client.read_workers_for_work_pool(self.place.pool))
                return Seen("waiting", f"pool {self.place.pool} has {online} workers online")
            return Seen("ended" if state.is_final() else "running")

    def stop(self, number: str) -> None:
        with prefect_client() as client:
            client.set_flow_run_state(UUID(number), Cancelling())


@contextmanager
def prefect_client() -> Iterator[SyncPrefectClient]:
    """Yield a client of the configured server. Raises `UserError`: 69 if Prefect is away, 78 if it refuses."""
    try:
        with get_client(sync_client=True) as client:
            yield client
    except ObjectNotFound as error:  # Someone has deleted the run.
        raise configuration_error(f"Prefect refuses: {first_line(error.http_exc)}") from error
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error:
            raise configuration_error(f"Prefect refuses: {first_line(error)}") from error
        raise UserError(f"Prefect is away: {first_line(error)}", "", ExitCode.UNAVAILABLE) from error
