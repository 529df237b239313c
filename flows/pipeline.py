"""The flow: the DAG of dvc.yaml, one Prefect task a stage, in order; DVC decides what runs, Prefect retries, shows and stops it."""

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
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
from flows.process.child import TimeLimitError, run_child
from flows.process.log import StageLog
from flows.process.paths import CHECKPOINTS, PUBLISHED
from flows.process.repro import TRANSIENT, StageError, dvc, search_path, stage_names, why
from flows.process.runner import BUG, exit_file, stop_on_signals
from flows.process.settings import settle
from flows.record import server
from flows.record.lineage import FLOW_RUN_ID, FLOW_RUN_NAME
from flows.record.sending import Sender
from flows.record.summary import Outcome, record, rows, summarize
from transformer_core.config import Machine, load_params, tracking_uri
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, first_line
from transformer_core.files import read_json

RETRIES = 3
FIRST_RETRY_SECONDS = 10.0
ARTIFACT, STAGES, TRAINING_LINK, ENDED = "pipeline", "pipeline-stages", "training-in-mlflow", "pipeline-ended"
TRAIN, PUBLISH = "train", "publish"
MODEL_CONFIG = CHECKPOINTS / "config.json"


def close_down(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """What is left to do when a run failed, crashed or was cancelled: end its runs on other machines and say how to go on.

    Prefect calls it by these names, in the worker where the run itself was killed.
    """
    del flow
    with get_client(sync_client=True) as client:
        pools.cancel_nodes(client, flow_run.id)
        advice = "" if state.is_failed() else "A training that was under way has been told to save: run it again to go on."
        ended = f"**{state.name}**: {state.message or 'no reason was given'}\n\n{advice}"
        client.create_artifact(ArtifactCreate(key=ENDED, type="markdown", data=ended, flow_run_id=flow_run.id))


@flow(name="pipeline", on_failure=[close_down], on_cancellation=[close_down], on_crashed=[close_down])
def pipeline(
    recipe: str | None = None, overrides: dict[str, Any] | None = None, first_stage: str | None = None, last_stage: str | None = None
) -> State[int] | int:
    """Run every stage of dvc.yaml in order, up to the first that fails, and keep the table of what was done as an artifact.

    Args:
        recipe: the recipe that becomes params.yaml; none leaves the file that is there.
        overrides: values by key that are changed in params.yaml, as {"train.updates": 50}.
        first_stage: the stage to begin with, on the outputs that those before it have left.
        last_stage: the stage to end with.

    Returns:
        0, or a failed state whose data is the exit code of the stage that failed.
    """
    try:
        if kept := settle(recipe, overrides or {}):
            get_run_logger().info("params.yaml is now what this run was given; the one before is %s", kept)
        machine = load_params().machine
        names = stages_between(first_stage, last_stage, stage_names())
    except UserError as error:
        return Failed(message=str(error), data=int(error.exit_code))
    outcomes: dict[str, Outcome] = {}
    for name in names:
        # Called, not submitted: only on the main thread does a signal end what the task has started.
        state = stage_task(name, machine)(return_state=True)
        outcomes[name] = cast(Outcome, state.result(raise_on_failure=False))
        if state.is_failed():
            break
    leave_artifacts(outcomes, machine)
    failed = next((outcome for outcome in outcomes.values() if outcome.code), None)
    return Failed(message=failed.message, data=failed.code) if failed else int(ExitCode.DONE)


def leave_artifacts(outcomes: Mapping[str, Outcome], machine: Machine) -> None:
    """Show what each stage did: on the terminal, in MLflow, and as artifacts: a table, the same with BLEU as a text, the link to MLflow."""
    table = rows(outcomes, machine.price_per_hour)
    training = fingerprint() if TRAIN in outcomes and not outcomes[TRAIN].code else ""
    link = training_link(machine, training) if training else ""
    summary = summarize(table, outcomes, link)
    create_table_artifact(key=STAGES, table=[asdict(row) for row in table], description="What each stage did")
    create_markdown_artifact(key=ARTIFACT, markdown=summary, description="What the run did")
    if link:
        create_link_artifact(key=TRAINING_LINK, link=link, link_text="The training in MLflow")
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


def stage_task(name: str, machine: Machine) -> Task[[], Any]:
    """The Prefect task of a stage, named after it."""

    @task(
        name=name,
        task_run_name=name,
        cache_policy=NO_CACHE,
        retries=RETRIES + 1,  # The last one is never made, see `is_transient`.
        retry_delay_seconds=exponential_backoff(FIRST_RETRY_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=is_transient,
    )
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
    """Run a stage where `machine.pools` says; what other machines made is then fetched, so that nothing is left to do here."""
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

    DVC skips a stage whose output is there, and of `publish` that is a file, which says nothing about the registry: where the
    registry has not got the model (another server, a deleted one), the stage is forced.
    """
    started = time.monotonic()
    outcome = _repro(name, started, machine)
    if name == PUBLISH and outcome.done == "cached":
        try:
            if not in_registry():
                get_run_logger().info("The registry has not got the model of %s: publishing again", PUBLISHED)
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
    return server.registered(uri, published["name"], published["version"])


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
    code, message = why(name, code, log.last_line)
    return Outcome(name, "failed", code, seconds, f"{message} (exit code {code})")


def fingerprint() -> str:
    """Of the training whose checkpoints lie here; empty where there are none."""
    return str(read_json(MODEL_CONFIG)["training"]["fingerprint"]) if MODEL_CONFIG.exists() else ""


def training_link(machine: Machine, training: str) -> str:
    """Where the run of a training, by its fingerprint, is to be seen in MLflow; empty where MLflow has none or is away."""
    uri = tracking_uri(machine)
    try:
        client = server.connect(uri)
        run = server.find_training(client, training)
        return server.run_link(client, uri, run.info.run_id) if run else ""
    except Exception as error:  # A table without a link is better than none.
        get_run_logger().warning("No link to MLflow: %s", first_line(error))
        return ""


def reach_prefect() -> None:
    """Make sure of a Prefect server: the configured one, or a temporary one that does not hear Ctrl-C, as it is to outlive the stages.

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
    """The request to stop that an error came from: after a signal to a whole group the server is away and Prefect fails to tell it."""
    while error is not None:
        if isinstance(error, Interrupted | TerminationSignal):
            return str(error) if isinstance(error, Interrupted) else f"stopped by {signal.Signals(error.signal).name}"
        error = error.__context__
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline as a Prefect flow, on the configured server or a temporary one.

    Ends with 0, or the exit code of the stage that failed; 75 after a signal, once all below has ended.
    """
    return run_flow(pipeline, parse(arguments))


def run_flow(chosen: Flow[..., Any], parameters: Mapping[str, Any]) -> int:
    """Run a flow whose result is an exit code, and return that code; 75 after a signal, once all below has ended."""
    stop_on_signals()
    try:
        reach_prefect()
        # A temporary server that is away, ended by the same signal, does not come back: Prefect would try for a minute.
        with temporary_settings({} if PREFECT_API_URL.value() else {PREFECT_CLIENT_MAX_RETRIES: 1}):
            state = cast(State[Any], chosen(**parameters, return_state=True))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (Interrupted, Exception) as error:
        if not (stopped := _stop_behind(error)):
            raise
        print(f"{stopped}. Run it again to go on.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    if not state.is_completed():
        print(state.message, file=sys.stderr)
    code = state.result(raise_on_failure=False)
    return code if isinstance(code, int) else BUG


def parse(arguments: Sequence[str] | None) -> dict[str, Any]:
    """The flow's parameters from a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.pipeline", description=main.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recipe", metavar="NAME", help="the recipe that becomes params.yaml (default: params.yaml as it is)")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], type=_override, help="a key to change in params.yaml: train.updates=50"
    )
    parser.add_argument("--first-stage", metavar="STAGE", help="the stage to begin with, on what those before it have left")
    parser.add_argument("--last-stage", metavar="STAGE", help="the stage to end with")
    given = parser.parse_args(arguments)
    return {"recipe": given.recipe, "overrides": dict(given.set), "first_stage": given.first_stage, "last_stage": given.last_stage}


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, YAML(typ="safe", pure=True).load(value)


if __name__ == "__main__":
    raise SystemExit(main())
