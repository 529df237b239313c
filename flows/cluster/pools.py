"""Stages on machines of a Prefect work pool: the flow `node`, which runs a stage there, and the functions that start it and wait for it.

A flow run is on one machine. A training on several nodes is one run of `node` for each: the first publishes its address, the others receive
it as a parameter, and if one fails, all others are cancelled.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterTags, WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelling, Failed

from flows.cluster.group import NodeGroup, address_for_others, free_port
from flows.cluster.node import StageRun, check_pushed, clone_for, committed, exchange, run
from flows.process.child import StageLog, grace_seconds
from flows.process.exits import BUG, KILLED, TRANSIENT
from flows.process.repro import ancestors, with_stage_name, without_advice
from flows.process.runner import StageError, echo
from flows.process.settings import tracked
from transformer_core.errors import ExitCode, UserError, configuration_error, did_you_mean, first_line, machine_errors, without_logins

NODE = "node"
WHERE_THE_FLOW_RUNS = ("evaluate", "publish")
POLL_SECONDS = 2.0
# How long nodes go on training while Prefect does not answer the flow that waits for them.
AWAY_SECONDS = 4 * 3600.0
Answer = TypeVar("Answer")
_RENDEZVOUS = "rendezvous="
_CODE = re.compile(r"\(exit code (\d+)\)$")


@flow(name=NODE, description="One stage for a pipeline elsewhere, alone or as one of several nodes that train together.")
def node(
    stage: str, repository: str, commit: str, settings: dict[str, Any] | None = None, rank: int = 0, nodes: int = 1, rendezvous: str = ""
) -> State[Any] | int:
    """Run one stage on this machine for a pipeline elsewhere, alone or as one of several nodes that train together.

    Args:
        stage: name of the stage.
        repository: address from which the repository is cloned.
        commit: commit of the repository.
        settings: tracked sections of params.yaml, which replace those of the commit.
        rank: number of this node, from 0; node 0 writes the outputs.
        nodes: number of nodes that train together.
        rendezvous: host and port of node 0; empty on node 0, which chooses and publishes them.
    """
    log = StageLog(without_advice(get_run_logger().info), ProgressBar(stage).show)
    try:
        with machine_errors(stage, "Use a machine with more."):
            group = NodeGroup(nodes, rank, rendezvous or _publish_rendezvous()) if nodes > 1 else None
            run(StageRun(stage, repository, commit, settings), clone_for(repository, rank), log, group)
    except UserError as error:
        return failed(with_stage_name(stage, str(error)), error.exit_code)
    except StageError as error:
        return failed(str(error), error.exit_code)
    return int(ExitCode.DONE)


def failed(message: str, code: int) -> State[Any]:
    """Return a failed state. Its result is a `StageError`: where a worker runs the flow, Prefect raises the result."""
    error = StageError(code, message.removesuffix(f" (exit code {code})"))
    return Failed(message=str(error), data=error)


def check_stages(chosen: Mapping[str, str], stages: Sequence[str]) -> None:
    """Check the keys of `machine.pools`.

    Raises `UserError` (78): no such stage, or one that writes MLflow's record, which is sent from the repository of the flow.
    """
    for name in chosen:
        if name not in stages:
            raise configuration_error(f"machine.pools.{name}: no such stage", did_you_mean(name, stages, f"Stages: {', '.join(stages)}."))
        if name in WHERE_THE_FLOW_RUNS:
            remedy = "Remove the key: the stage takes seconds on a CPU."
            raise configuration_error(f"machine.pools.{name}: this stage runs only where the flow runs", remedy)


def run_on_nodes(stage: str, pool: str, nodes: int) -> bool:
    """Run a stage on machines of a work pool, unless its outputs are here or in a run-cache, and fetch them. Return whether it ran.

    They are fetched by `restore`, which never runs the stage: `dvc repro --pull` would do so here after a failed download.

    Raises:
        StageError: the stage failed there, or could not be started there, or its outputs could not be fetched.
    """
    log = StageLog(get_run_logger().info)
    try:
        if exchange("restore", [stage], Path(), log):
            return False
        with get_client(sync_client=True) as client:
            deployment = find_deployment(client, pool)
            repository, commit = committed()
            check_pushed(repository, commit)
            exchange("push", ancestors(stage), Path(), log)
            # Prefect shows parameters to everybody, so a token in the address stays here: nodes have their own (docs/cluster.md).
            work = {"stage": stage, "repository": without_logins(repository), "commit": commit, "settings": tracked()}
            _run_group(client, deployment, work, nodes)
        if not exchange("restore", [stage], Path(), log):
            message = f"the stage ran in pool {pool}, but the DVC remote has no run of it on the present inputs"
            raise configuration_error(message, "Name the same remote for all machines: docs/cluster.md, What machines share.")
    except UserError as error:
        raise StageError(error.exit_code, f"{stage}: {error}") from error
    return True


def find_deployment(client: SyncPrefectClient, pool: str) -> DeploymentResponse:
    """Return the deployment of the flow `node` on a work pool. Raises `UserError` (78): the pool or the deployment does not exist."""
    try:
        client.read_work_pool(pool)
    except ObjectNotFound:
        remedy = (
            f"Create it: prefect work-pool create {pool} --type process (or as docs/cluster.md says for Kubernetes), name it for "
            "training-node in prefect.yaml, then: prefect --no-prompt deploy --all"
        )
        raise configuration_error(f"machine.pools: Prefect has no work pool {pool!r}", remedy) from None
    found = client.read_deployments(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[NODE])), work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    )
    if not found:
        message = f"machine.pools: no deployment of the flow {NODE} is on work pool {pool!r}"
        raise configuration_error(message, "Name the pool for training-node in prefect.yaml, then: prefect --no-prompt deploy --all")
    return found[0]


def cancel_nodes(client: SyncPrefectClient, pipeline_run: UUID) -> None:
    """Cancel the unfinished runs of `node` that a pipeline run has started."""
    tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[_tag(pipeline_run)]))
    _cancel(client, client.read_flow_runs(flow_run_filter=tagged))


class ProgressBar:
    """A progress artifact of the current flow run. If Prefect is unavailable, only the bar is lost."""

    def __init__(self, stage: str) -> None:
        self._key = f"{stage}-progress"
        self._artifact: UUID | None = None
        self._lost = False

    def show(self, percent: float) -> None:
        """Create or update the bar."""
        if self._lost:
            return
        try:
            if self._artifact is None:
                self._artifact = UUID(str(create_progress_artifact(percent, key=self._key, description="Updates done")))
            else:
                update_progress_artifact(self._artifact, progress=percent)
        except Exception as error:
            self._lost = True
            get_run_logger().warning("No progress bar from here on: %s", error)


def _run_group(client: SyncPrefectClient, deployment: DeploymentResponse, parameters: dict[str, Any], nodes: int) -> None:
    runs: list[FlowRun] = []
    try:
        rendezvous = ""
        for rank in range(nodes):
            if rank == 1:
                rendezvous = _wait_for_rendezvous(client, runs[0])
            runs.append(_start(deployment, {**parameters, "rank": rank, "nodes": nodes, "rendezvous": rendezvous}))
        wait_for_all(client, runs)
    finally:
        _end(client, runs)


def _start(deployment: DeploymentResponse, parameters: dict[str, Any]) -> FlowRun:
    name, tags = f"{parameters['stage']}-{parameters['rank']}", [_tag(UUID(str(flow_run.get_id())))]
    started = cast(FlowRun, run_deployment(deployment.id, parameters=parameters, timeout=0, tags=tags, flow_run_name=name))
    get_run_logger().info("%s: run %s of %s in pool %s", name, started.id, deployment.name, deployment.work_pool_name)
    return started


def _wait_for_rendezvous(client: SyncPrefectClient, run: FlowRun) -> str:
    """Return the rendezvous that node 0 publishes once it runs, which may take long if the pool is busy."""
    while True:
        (first,) = _states(client, [run], AWAY_SECONDS)
        for tag in first.tags:
            if tag.startswith(_RENDEZVOUS):
                return tag.removeprefix(_RENDEZVOUS)
        _check([first])
        time.sleep(POLL_SECONDS)


def wait_for_all(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> None:
    """Wait until all runs have succeeded, also while Prefect is away for up to `AWAY_SECONDS`: the runs go on without it.

    Raises:
        StageError: a run has ended without success.
        UserError: exit code 69; Prefect was away for longer.
    """
    while True:
        seen = _states(client, runs, AWAY_SECONDS)
        _check(seen)
        if all(run.state and run.state.is_completed() for run in seen):
            return
        time.sleep(POLL_SECONDS)


def _states(client: SyncPrefectClient, runs: Sequence[FlowRun], patience: float) -> list[FlowRun]:
    return [_answer(partial(client.read_flow_run, run.id), patience) for run in runs]


def _answer(request: Callable[[], Answer], patience: float) -> Answer:
    """Return Prefect's answer; ask again for `patience` seconds while it is unreachable or has an error of its own. Raises `UserError`."""
    deadline, said = time.monotonic() + patience, False
    while True:
        try:
            return request()
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error:
                raise
            if time.monotonic() >= deadline:
                raise UserError(f"Prefect does not answer: {first_line(error)}", "", ExitCode.UNAVAILABLE) from error
            if not said:
                echo(f"Prefect does not answer: {first_line(error)}. Trying again for {timedelta(seconds=patience)}.", sys.stderr)
                said = True
        time.sleep(POLL_SECONDS)


def _check(runs: Sequence[FlowRun]) -> None:
    """Raise a `StageError` if a run has ended without success. A permanent error is preferred, because it makes other nodes fail."""
    failed = [(_code(run.state), run) for run in runs if run.state and run.state.is_final() and not run.state.is_completed()]
    if failed:
        code, worst = next((entry for entry in failed if entry[0] not in TRANSIENT), failed[0])
        state = worst.state
        raise StageError(code, f"{worst.name}: {_CODE.sub('', (state and (state.message or state.name)) or 'no state').strip()}")


def _code(state: State[Any]) -> int:
    found = _CODE.search(state.message or "")
    if found:
        return int(found.group(1))
    return ExitCode.INTERRUPTED if state.is_cancelled() else KILLED if state.is_crashed() else BUG


def _end(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> None:
    """Cancel unfinished runs, and wait for their end, because they may be saving."""
    with suppress(UserError):  # The reason why the group ends is more useful than an error that Prefect is away, too.
        _cancel(client, _states(client, runs, grace_seconds()))
        deadline = time.monotonic() + grace_seconds()
        while time.monotonic() < deadline and any(
            not (run.state and run.state.is_final()) for run in _states(client, runs, grace_seconds())
        ):
            time.sleep(POLL_SECONDS)


def _cancel(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> None:
    for node_run in runs:
        if node_run.state is None or not node_run.state.is_final():
            with suppress(ObjectNotFound):
                _answer(partial(client.set_flow_run_state, node_run.id, Cancelling()), grace_seconds())


def _publish_rendezvous() -> str:
    """Choose an address and a port of this machine, and publish both in a tag of this run, which the pipeline reads."""
    with get_client(sync_client=True) as client:
        api = urlsplit(str(client.api_url))
        address = os.environ.get("TRANSFORMER_ADDRESS") or address_for_others(str(api.hostname), api.port or 443)
        rendezvous = f"{address}:{free_port(address)}"
        node_run = client.read_flow_run(UUID(str(flow_run.get_id())))
        client.update_flow_run(node_run.id, tags=[*node_run.tags, f"{_RENDEZVOUS}{rendezvous}"])
    return rendezvous


def _tag(pipeline_run: UUID) -> str:
    return f"pipeline={pipeline_run}"
