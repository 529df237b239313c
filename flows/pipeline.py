"""The flow: the stages of dvc.yaml in order, one Prefect task each. DVC decides which stages run; Prefect shows, retries and stops them."""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import httpx
import psutil
from prefect import Flow, flow, get_run_logger, task
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Completed, Failed
from prefect.tasks import Task, exponential_backoff

from flows.cluster import pools
from flows.process.child import StageLog, TimeLimitError, run_child
from flows.process.exits import BUG, TRANSIENT
from flows.process.paths import PUBLISHED
from flows.process.repro import dvc, failure, repair, search_path, stage_names, without_advice
from flows.process.runner import StageError, echo, exit_file, reports_errors
from flows.process.settings import check_settings_of_run, settings_of_run
from flows.process.signals import stop_on_signals
from flows.record import server
from flows.record.documents import CHECKPOINT_CONFIG, read_output
from flows.record.lineage import FLOW_RUN_ID, FLOW_RUN_NAME, training_name
from flows.record.sending import background_sender
from flows.record.store import tracking_uri
from flows.record.summary import Outcome, record, summarize, table_of
from transformer_core.cli.arguments import Parser
from transformer_core.config import Machine, load_params
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, first_line, machine_errors
from transformer_core.yaml_io import parse_yaml

RETRIES = 3
FIRST_RETRY_SECONDS = 10.0
SUMMARY_ARTIFACT, TABLE_ARTIFACT, LINK_ARTIFACT, END_ARTIFACT = "pipeline", "pipeline-stages", "training-in-mlflow", "pipeline-ended"
TRAIN, PUBLISH = "train", "publish"


def on_run_ended(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Cancel the runs on other machines of a run that failed, crashed or was cancelled, and write advice as an artifact.

    Prefect passes the arguments by name; if the run itself was killed, its worker calls this.
    """
    del flow
    with get_client(sync_client=True) as client:
        pools.cancel_nodes(client, flow_run.id)
        advice = "" if state.is_failed() else "A running training was asked to save: run it again to resume."
        ended = f"**{state.name}**: {state.message or 'no reason was given'}\n\n{advice}"
        client.create_artifact(ArtifactCreate(key=END_ARTIFACT, type="markdown", data=ended, flow_run_id=flow_run.id))


@flow(
    name="pipeline",
    description="The stages of dvc.yaml in order, up to the first that fails, with a summary as artifacts.",
    on_failure=[on_run_ended],
    on_cancellation=[on_run_ended],
    on_crashed=[on_run_ended],
)
def pipeline(
    recipe: str | None = None, overrides: dict[str, Any] | None = None, first_stage: str | None = None, last_stage: str | None = None
) -> State[Any] | int:
    """Run the stages of dvc.yaml in order, up to the first that fails, and write a summary as artifacts.

    Args:
        recipe: the recipe of this run; None for params.yaml as it is.
        overrides: values by key for this run, as {"train.updates": 50}.
        first_stage: the stage to begin with; earlier stages keep their present outputs.
        last_stage: the stage to end with.

    Returns:
        0, or a failed state whose result is a `StageError` with the exit code of the stage that failed.
    """
    try:
        with machine_errors("pipeline", "Use a machine with more."), settings_of_run(recipe, overrides or {}):
            params = load_params()
            name_run(f"{training_name(params)}, {params.train.updates:,} updates")
            stages = stage_names()
            pools.check_stages(params.machine.pools, stages)
            return run_stages(stages_between(first_stage, last_stage, stages), params.machine)
    except UserError as error:
        return pools.failed(str(error), error.exit_code)


def name_run(name: str) -> None:
    """Name the current flow run, unless somebody has named it: Prefect's own names are two words without a meaning."""
    context = FlowRunContext.get()
    if context and context.flow_run and re.fullmatch(r"[a-z]+-[a-z]+", context.flow_run.name):
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(context.flow_run.id, name)
        context.flow_run.name = name


def run_stages(names: Sequence[str], machine: Machine) -> State[Any] | int:
    """Run stages in order, up to the first that fails."""
    outcomes: dict[str, Outcome] = {}
    state: State[Any] | None = None
    for name in names:
        # Called, not submitted, because a signal ends only the processes of tasks on the main thread. `wait_for` draws an arrow.
        state = stage_task(name, machine)(return_state=True, wait_for=[state] if state else None)
        outcomes[name] = outcome_of(state)
        if state.is_failed():
            break
    leave_artifacts(outcomes, machine)
    return end_of(outcomes.values())


def outcome_of(state: State[Any]) -> Outcome:
    """Return the result of a task that returns an `Outcome`, also if it failed. Raises any other exception that ended it."""
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return cast(Outcome, result)


def end_of(outcomes: Iterable[Outcome]) -> State[Any] | int:
    """Return the end of a flow: 0, or the failed state of the first outcome that is a failure."""
    first = next((outcome for outcome in outcomes if outcome.code), None)
    return pools.failed(first.message, first.code) if first else int(ExitCode.DONE)


def leave_artifacts(outcomes: Mapping[str, Outcome], machine: Machine) -> None:
    """Write the summary to the terminal, to MLflow, and as artifacts: a table, a text with the score, the link to MLflow."""
    table = table_of(outcomes, machine.price_per_hour)
    training = trained() if TRAIN in outcomes and not outcomes[TRAIN].code else None
    link, command = training_link(machine, training) if training else "", server.ui_command(tracking_uri(machine))
    summary = summarize(table, outcomes, link, command)
    create_table_artifact(
        key=TABLE_ARTIFACT, table=cast("list[dict[str, Any]]", table.to_dict("records")), description="What each stage did"
    )
    create_markdown_artifact(key=SUMMARY_ARTIFACT, markdown=summary, description="What the run did")
    if link and not command:
        create_link_artifact(key=LINK_ARTIFACT, link=link, link_text="The training in MLflow")
    if training:
        with background_sender(record(table, str(flow_run.get_name()), str(flow_run.get_id()), training), tracking_uri(machine)):
            pass
    echo(summary, sys.stdout)


def stages_between(first: str | None, last: str | None, names: list[str]) -> list[str]:
    """Return the stages from one to another, both included; None is the first or the last of all.

    Raises `UserError` (78): no such stage, or the last comes before the first.
    """
    for parameter, name in (("first_stage", first), ("last_stage", last)):
        if name is not None and name not in names:
            raise configuration_error(f"{parameter}: no stage is called {name!r}", f"Stages: {', '.join(names)}.")
    chosen = names[names.index(first or names[0]) : names.index(last or names[-1]) + 1]
    if not chosen:
        raise configuration_error(f"last_stage: {last} comes before {first}", f"Stages: {', '.join(names)}.")
    return chosen


def outcome_task(
    name: str, run_name: str, description: str, condition: Callable[..., bool], body: Callable[[], str], nodes: int = 1
) -> Task[[], Any]:
    """Return a Prefect task that runs `body` and returns its `Outcome`, retried with a growing delay while `condition` holds.

    `body` returns what was done ("ran", "cached"), or raises `StageError` or `UserError`. `nodes` is the number of machines that it uses.
    """

    @task(
        name=name,
        description=description,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        retries=RETRIES + 1,  # The last retry never runs, see `is_transient`.
        retry_delay_seconds=exponential_backoff(FIRST_RETRY_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=condition,
    )
    def run() -> State[Outcome] | Outcome:
        started = time.monotonic()
        try:
            done = body()
        except (StageError, UserError) as error:
            outcome = Outcome(run_name, "failed", error.exit_code, time.monotonic() - started, str(error), nodes)
            # A returned state is retried like an exception, but shown as one line, not as a traceback.
            return Failed(message=outcome.message, data=outcome)
        outcome = Outcome(run_name, done, ExitCode.DONE, time.monotonic() - started, nodes=nodes)
        return Completed(name="Cached", data=outcome) if done == "cached" else outcome

    return run


def stage_task(name: str, machine: Machine) -> Task[[], Any]:
    """Return the Prefect task of a stage, named after it."""
    pool = machine.pools.get(name)
    nodes = machine.training_nodes if name == TRAIN else 1
    description = f"Stage {name} of dvc.yaml, run by DVC here or on the machines of its pool"

    def run() -> str:
        if pool is None:
            return run_in_dvc(name, machine)
        return f"ran in {pool}" if pools.run_on_nodes(name, pool, nodes) else "cached"

    return outcome_task(name, name, description, is_transient, run, nodes)


def is_transient(_task: Task[..., Any], task_run: TaskRun, state: State[Outcome]) -> bool:
    """Return whether to run a failed stage again: not after errors in data or settings, and at most `RETRIES` times.

    The limit is checked here, because Prefect logs an empty traceback at its own limit.
    """
    outcome = state.result(raise_on_failure=False)
    return isinstance(outcome, Outcome) and outcome.code in TRANSIENT and task_run.run_count <= RETRIES


def run_in_dvc(name: str, machine: Machine) -> str:
    """Run a stage with DVC, or take it from DVC's cache; return what was done. Its output goes to the log of the running task.

    DVC skips a stage whose output exists. The output of `publish` is a file, which does not show whether the registry has the model: if it
    has not (another server, a deleted model), the stage is forced.
    """
    done = _repro(name, machine)
    if name == PUBLISH and done == "cached":
        try:
            if not in_registry():
                get_run_logger().info("The registry has no model of %s: publishing again", PUBLISHED)
                return _repro(name, machine, "--force")
        except UserError as error:
            raise UserError(f"{name}: {error.message}", error.remedy, error.exit_code) from None
    return done


def in_registry() -> bool:
    """Return whether the registry has the model that results/published.json names. Raises `UserError` (69): MLflow is unreachable."""
    published = read_output(PUBLISHED)
    uri = tracking_uri(load_params().machine)
    # An experiment's model has no version.
    return server.registered(uri, published["name"], published.get("version", ""), published.get("run_id", ""))


def _repro(name: str, machine: Machine, *options: str) -> str:
    """Run a stage with DVC, and return "ran" or "cached". Raises `StageError`: it failed, or exceeded `machine.limit_hours`."""
    ended = exit_file(name)
    ended.unlink(missing_ok=True)
    repair()
    log = StageLog(without_advice(get_run_logger().info), pools.ProgressBar(name).show)
    limit = machine.limit_hours
    command = dvc("repro", "--single-item", *options, name)
    environment = {"PATH": search_path(), FLOW_RUN_ID: flow_run.get_id() or "", FLOW_RUN_NAME: flow_run.get_name() or ""}
    try:
        code = run_child(command, log, limit_seconds=limit and 3600 * limit, environment=environment)
    except TimeLimitError:
        raise StageError(ExitCode.INTERRUPTED, f"{name}: ended after machine.limit_hours ({limit:g})") from None
    if code:
        raise StageError(*failure(name, code, log.last_line))
    return "ran" if ended.exists() else "cached"


def trained() -> tuple[str, str] | None:
    """Return fingerprint and run of the training whose checkpoints are here; None if there are none."""
    if not CHECKPOINT_CONFIG.exists():
        return None
    training = read_output(CHECKPOINT_CONFIG)["training"]
    return training["fingerprint"], training.get("run", "")


def training_link(machine: Machine, training: tuple[str, str]) -> str:
    """Return the address of a training's run in MLflow, as of `trained`; empty if MLflow has no such run or is unreachable."""
    uri = tracking_uri(machine)
    try:
        client = server.connect(uri)
        run = server.find_training(client, *training)
        return server.run_link(uri, run) if run else ""
    except Exception as error:  # A table without a link is better than none.
        get_run_logger().warning("No link to MLflow: %s", first_line(error))
        return ""


def reach_prefect() -> None:
    """Check the configured Prefect server, or start a temporary one that outlives the stages: it ignores the signals of a terminal.

    Raises `UserError` (69): the configured server is unreachable.
    """
    terminal = {signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, terminal)
    try:
        with get_client(sync_client=True) as client:
            trouble = client.api_healthcheck()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, terminal)
    if trouble:
        remedy = "Start it, unset PREFECT_API_URL for a temporary one, or do without Prefect: dvc repro"
        raise UserError(f"Prefect at {client.api_url} is unreachable: {first_line(trouble)}", remedy, ExitCode.UNAVAILABLE)
    if not PREFECT_API_URL.value():
        _end_children_with_this_process()


def _end_children_with_this_process() -> None:
    """Have a shell stop the present children of this process (a temporary server) when this process ends, even if it is killed.

    The shell waits for the end of a pipe, whose other end stays open in this process alone.
    """
    script = 'trap "" INT TERM USR1 HUP; exec >/dev/null 2>&1; read -r _; kill "$@"'
    children = [str(child.pid) for child in psutil.Process().children()]
    read_end, _ = os.pipe()
    os.posix_spawn("/bin/sh", ["sh", "-c", script, "sh", *children], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0)])
    os.close(read_end)


def _stop_behind(error: BaseException | None) -> str:
    """Return the stop signal that caused an error, or "": a signal to the whole group also ends the server, and Prefect's reports fail."""
    while error is not None:
        if isinstance(error, Interrupted | TerminationSignal):
            return str(error) if isinstance(error, Interrupted) else f"stopped by {signal.Signals(error.signal).name}"
        error = error.__context__
    return ""


def _raise_if_unreachable(result: object) -> None:
    """Raise `UserError` (69) for the error of a client whose server has become unreachable."""
    if isinstance(result, httpx.TransportError):
        remedy = "The outputs of finished stages are kept. Start it, and run this again to resume."
        raise UserError(f"Prefect is unreachable: {first_line(result)}", remedy, ExitCode.UNAVAILABLE)


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline as a Prefect flow, on the configured server or a temporary one.

    Ends with 0, or the exit code of the stage that failed; 75 after a signal, once all its processes have ended.
    """
    parameters = parse(arguments)
    check_settings_of_run(parameters["recipe"], parameters["overrides"])  # The flow does so too, but a temporary server takes 10 seconds.
    return run_flow(pipeline, parameters)


@reports_errors
def run_flow(chosen: Flow[..., Any], parameters: Mapping[str, Any]) -> int:
    """Run a flow whose result is an exit code, and return that code; 75 after a signal, once all its processes have ended."""
    stop_on_signals()
    try:
        reach_prefect()
        # Few retries, because a temporary server that the same signal ended does not come back; Prefect would try for a minute.
        with temporary_settings({} if PREFECT_API_URL.value() else {PREFECT_CLIENT_MAX_RETRIES: 1}):
            state = cast(State[Any], chosen(**parameters, return_state=True))
    except (Interrupted, Exception) as error:
        if stopped := _stop_behind(error):
            raise Interrupted(stopped) from None
        _raise_if_unreachable(error)
        raise
    _raise_if_unreachable(state.result(raise_on_failure=False))
    if not state.is_completed():
        echo(state.message or state.name or "failed", sys.stderr)
    result = state.result(raise_on_failure=False)
    if isinstance(result, StageError):
        return result.exit_code
    return result if isinstance(result, int) else BUG


def parse(arguments: Sequence[str] | None) -> dict[str, Any]:
    """Return the flow's parameters from a command line."""
    parser = Parser(prog="python -m flows.pipeline", description=main.__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipe", metavar="NAME", help="recipe of this run (default: params.yaml as it is)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], type=_override, help="a setting of this run: train.updates=50"
    )
    parser.add_argument("--first-stage", metavar="STAGE", help="stage to begin with; earlier stages keep their present outputs")
    parser.add_argument("--last-stage", metavar="STAGE", help="stage to end with")
    options = parser.parse_args(arguments)
    return {"recipe": options.recipe, "overrides": dict(options.set), "first_stage": options.first_stage, "last_stage": options.last_stage}


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, parse_yaml(value, f"--set {key}")


if __name__ == "__main__":
    raise SystemExit(main())
