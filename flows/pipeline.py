"""The flow: the stages of dvc.yaml in order, one Prefect task each; DVC decides which run, Prefect retries, shows and stops them."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from prefect import Flow, flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Failed
from prefect.tasks import Task, exponential_backoff
from ruamel.yaml import YAML

from flows.cluster import pools
from flows.process.child import StageLog, TimeLimitError, run_child
from flows.process.paths import CHECKPOINTS, PUBLISHED
from flows.process.repro import TRANSIENT, dvc, failure, search_path, stage_names
from flows.process.runner import BUG, StageError, exit_file, reports_errors, stop_on_signals
from flows.process.settings import write_params
from flows.record import server
from flows.record.lineage import FLOW_RUN_ID, FLOW_RUN_NAME
from flows.record.sending import Sender
from flows.record.summary import Outcome, record, summarize, table_of
from transformer_core.config import Machine, load_params, tracking_uri
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, first_line
from transformer_core.files import read_json

RETRIES = 3
FIRST_RETRY_SECONDS = 10.0
SUMMARY_ARTIFACT, TABLE_ARTIFACT, LINK_ARTIFACT, END_ARTIFACT = "pipeline", "pipeline-stages", "training-in-mlflow", "pipeline-ended"
TRAIN, PUBLISH = "train", "publish"
MODEL_CONFIG = CHECKPOINTS / "config.json"


def close_down(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """After a run that failed, crashed or was cancelled, end its runs on other machines and leave advice as an artifact.

    Prefect passes the arguments by name; if the run itself was killed, its worker calls this.
    """
    del flow
    with get_client(sync_client=True) as client:
        pools.cancel_nodes(client, flow_run.id)
        advice = "" if state.is_failed() else "A running training was asked to save: run it again to go on."
        ended = f"**{state.name}**: {state.message or 'no reason was given'}\n\n{advice}"
        client.create_artifact(ArtifactCreate(key=END_ARTIFACT, type="markdown", data=ended, flow_run_id=flow_run.id))


@flow(name="pipeline", on_failure=[close_down], on_cancellation=[close_down], on_crashed=[close_down])
def pipeline(
    recipe: str | None = None, overrides: dict[str, Any] | None = None, first_stage: str | None = None, last_stage: str | None = None
) -> State[int] | int:
    """Run every stage of dvc.yaml in order, up to the first that fails, and keep a summary as artifacts.

    Args:
        recipe: the recipe to write to params.yaml; None leaves the present file.
        overrides: values by key to change in params.yaml, as {"train.updates": 50}.
        first_stage: the stage to begin with, on the present outputs of those before it.
        last_stage: the stage to end with.

    Returns:
        0, or a failed state whose data is the exit code of the stage that failed.
    """
    try:
        if backup := write_params(recipe, overrides or {}):
            get_run_logger().info("params.yaml has the settings of this run; the previous file is %s", backup)
        machine = load_params().machine
        names = stages_between(first_stage, last_stage, stage_names())
    except UserError as error:
        return Failed(message=str(error), data=int(error.exit_code))
    outcomes: dict[str, Outcome] = {}
    for name in names:
        # Called, not submitted: a signal ends the processes of a task only on the main thread.
        state = stage_task(name, machine)(return_state=True)
        outcomes[name] = cast(Outcome, state.result(raise_on_failure=False))
        if state.is_failed():
            break
    leave_artifacts(outcomes, machine)
    failed = next((outcome for outcome in outcomes.values() if outcome.code), None)
    return Failed(message=failed.message, data=failed.code) if failed else int(ExitCode.DONE)


def leave_artifacts(outcomes: Mapping[str, Outcome], machine: Machine) -> None:
    """Show the summary: on the terminal, in MLflow, and as artifacts: a table, a text with the score, the link to MLflow."""
    table = table_of(outcomes, machine.price_per_hour)
    training = fingerprint() if TRAIN in outcomes and not outcomes[TRAIN].code else ""
    link = training_link(machine, training) if training else ""
    summary = summarize(table, outcomes, link)
    create_table_artifact(
        key=TABLE_ARTIFACT, table=cast("list[dict[str, Any]]", table.to_dict("records")), description="What each stage did"
    )
    create_markdown_artifact(key=SUMMARY_ARTIFACT, markdown=summary, description="What the run did")
    if link:
        create_link_artifact(key=LINK_ARTIFACT, link=link, link_text="The training in MLflow")
    if training:
        with Sender(record(table, str(flow_run.get_name()), str(flow_run.get_id()), training), tracking_uri(machine)):
            pass
    print(summary)


def stages_between(first: str | None, last: str | None, names: list[str]) -> list[str]:
    """The stages from one to another, both included; None is the first or the last of all.

    Raises:
        UserError: exit code 78; there is no such stage, or the last comes before the first.
    """
    for parameter, name in (("first_stage", first), ("last_stage", last)):
        if name is not None and name not in names:
            raise configuration_error(f"{parameter}: no stage is called {name!r}", f"Stages: {', '.join(names)}.")
    chosen = names[names.index(first or names[0]) : names.index(last or names[-1]) + 1]
    if not chosen:
        raise configuration_error(f"last_stage: {last} comes before {first}", f"Stages: {', '.join(names)}.")
    return chosen


def retried_task(name: str, run_name: str, condition: Callable[..., bool]) -> Callable[[Callable[[], Any]], Task[[], Any]]:
    """Decorator: a Prefect task without a cache of its own, retried with a growing delay while the condition holds."""
    return task(
        name=name,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        retries=RETRIES + 1,  # The last one is never made, see `is_transient`.
        retry_delay_seconds=exponential_backoff(FIRST_RETRY_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=condition,
    )


def stage_task(name: str, machine: Machine) -> Task[[], Any]:
    """The Prefect task of a stage, named after it."""

    @retried_task(name, name, is_transient)
    def run() -> State[Outcome] | Outcome:
        outcome = run_here_or_in_pool(name, machine)
        # A returned state is retried like an exception, and shown as the stage's own line rather than as a traceback.
        return Failed(message=outcome.message, data=outcome) if outcome.code else outcome

    return run


def is_transient(_task: Task[..., Any], task_run: TaskRun, state: State[Outcome]) -> bool:
    """Whether to run a failed stage again: not for bad data or settings, and `RETRIES` times at most.

    The count is kept here because Prefect, once its own is used up, logs an empty traceback.
    """
    outcome = state.result(raise_on_failure=False)
    return isinstance(outcome, Outcome) and outcome.code in TRANSIENT and task_run.run_count <= RETRIES


def run_here_or_in_pool(name: str, machine: Machine) -> Outcome:
    """Run a stage here or in its pool of `machine.pools`; outputs of other machines are then fetched, so that the stage is up to date."""
    pool, nodes = machine.pools.get(name), (machine.nodes or 1) if name == TRAIN else 1
    if pool is None:
        return run_in_dvc(name, machine)
    started = time.monotonic()
    try:
        elsewhere = pools.run_in_pool(name, pool, nodes)
    except StageError as error:
        return Outcome(name, "failed", error.exit_code, time.monotonic() - started, str(error), nodes)
    outcome = _repro(name, started, machine, "--pull")
    return replace(outcome, done=f"ran in {pool}" if elsewhere else outcome.done, nodes=nodes)


def run_in_dvc(name: str, machine: Machine) -> Outcome:
    """Let DVC run the stage or take it from its cache; its lines go to the log of the running task.

    DVC skips a stage whose output exists. That of `publish` is a file, which says nothing about the registry: if the registry has no such
    model (another server, a deleted one), the stage is forced.
    """
    started = time.monotonic()
    outcome = _repro(name, started, machine)
    if name == PUBLISH and outcome.done == "cached":
        try:
            if not in_registry():
                get_run_logger().info("The registry has no model of %s: publishing again", PUBLISHED)
                return _repro(name, started, machine, "--force")
        except UserError as error:
            return Outcome(name, "failed", error.exit_code, time.monotonic() - started, f"{name}: {error}")
    return outcome


def in_registry() -> bool:
    """Whether the model that results/published.json names is in the registry.

    Raises:
        UserError: exit code 69; MLflow is away.
    """
    published = read_json(PUBLISHED)
    uri = tracking_uri(load_params().machine)
    return server.registered(uri, published["name"], published.get("version", ""))  # An experiment's model has no version.


def _repro(name: str, started: float, machine: Machine, *options: str) -> Outcome:
    ended = exit_file(name)
    ended.unlink(missing_ok=True)
    log = StageLog(get_run_logger().info, pools.ProgressBar(name).show)
    limit = machine.limit_hours
    command = dvc("repro", "--single-item", *options, name)
    environment = {"PATH": search_path(), FLOW_RUN_ID: flow_run.get_id() or "", FLOW_RUN_NAME: flow_run.get_name() or ""}
    try:
        code = run_child(command, log, limit_seconds=limit and 3600 * limit, environment=environment)
    except TimeLimitError:
        message = f"{name}: ended after machine.limit_hours ({limit:g}) (exit code {ExitCode.INTERRUPTED})"
        return Outcome(name, "failed", ExitCode.INTERRUPTED, time.monotonic() - started, message)
    seconds = time.monotonic() - started
    if code == ExitCode.DONE:
        return Outcome(name, "ran" if ended.exists() else "cached", ExitCode.DONE, seconds)
    code, message = failure(name, code, log.last_line)
    return Outcome(name, "failed", code, seconds, f"{message} (exit code {code})")


def fingerprint() -> str:
    """The fingerprint of the training whose checkpoints are here; empty if there are none."""
    return str(read_json(MODEL_CONFIG)["training"]["fingerprint"]) if MODEL_CONFIG.exists() else ""


def training_link(machine: Machine, training: str) -> str:
    """The address of a training's run in MLflow, by its fingerprint; empty if MLflow has none or is away."""
    uri = tracking_uri(machine)
    try:
        client = server.connect(uri)
        run = server.find_training(client, training)
        return server.run_link(client, uri, run.info.run_id) if run else ""
    except Exception as error:  # A table without a link is better than none.
        get_run_logger().warning("No link to MLflow: %s", first_line(error))
        return ""


def reach_prefect() -> None:
    """Check the configured Prefect server, or start a temporary one that ignores Ctrl-C, because it must outlive the stages.

    Raises:
        UserError: exit code 69; the configured server is away.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with get_client(sync_client=True) as client:
            trouble = client.api_healthcheck()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if trouble:
        remedy = "Start it, unset PREFECT_API_URL for a temporary one, or do without Prefect: dvc repro"
        raise UserError(f"Prefect at {client.api_url} is away: {first_line(trouble)}", remedy, ExitCode.UNAVAILABLE)


def _stop_behind(error: BaseException | None) -> str:
    """The stop signal behind an error: after a signal to the whole group the server is away too, and Prefect fails to report to it."""
    while error is not None:
        if isinstance(error, Interrupted | TerminationSignal):
            return str(error) if isinstance(error, Interrupted) else f"stopped by {signal.Signals(error.signal).name}"
        error = error.__context__
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline as a Prefect flow, on the configured server or a temporary one.

    Ends with 0, or the exit code of the stage that failed; 75 after a signal, once all its processes have ended.
    """
    return run_flow(pipeline, parse(arguments))


@reports_errors
def run_flow(chosen: Flow[..., Any], parameters: Mapping[str, Any]) -> int:
    """Run a flow whose result is an exit code, and return that code; 75 after a signal, once all its processes have ended."""
    stop_on_signals()
    try:
        reach_prefect()
        # A temporary server that the same signal has ended does not come back: Prefect would retry for a minute.
        with temporary_settings({} if PREFECT_API_URL.value() else {PREFECT_CLIENT_MAX_RETRIES: 1}):
            state = cast(State[Any], chosen(**parameters, return_state=True))
    except (Interrupted, Exception) as error:
        if not (stopped := _stop_behind(error)):
            raise
        raise Interrupted(stopped) from None
    if not state.is_completed():
        print(state.message, file=sys.stderr)
    code = state.result(raise_on_failure=False)
    return code if isinstance(code, int) else BUG


def parse(arguments: Sequence[str] | None) -> dict[str, Any]:
    """The flow's parameters from a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.pipeline", description=main.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipe", metavar="NAME", help="recipe to write to params.yaml (default: params.yaml as it is)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], type=_override, help="key to change in params.yaml: train.updates=50"
    )
    parser.add_argument("--first-stage", metavar="STAGE", help="stage to begin with, on the present outputs of those before it")
    parser.add_argument("--last-stage", metavar="STAGE", help="stage to end with")
    given = parser.parse_args(arguments)
    return {"recipe": given.recipe, "overrides": dict(given.set), "first_stage": given.first_stage, "last_stage": given.last_stage}


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, YAML(typ="safe", pure=True).load(value)


if __name__ == "__main__":
    raise SystemExit(main())
