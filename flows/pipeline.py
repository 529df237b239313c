"""The flow: the stages of dvc.yaml in order, one Prefect task each. DVC decides which stages run; Prefect shows and stops them."""

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, chdir, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, cast
from uuid import UUID

import httpx
import psutil
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Completed, Failed, Running

from flows.dvc.commands import changed_from, reproduce, stages_up_to
from flows.dvc.settings import settings_of_run
from flows.dvc.worktree import snapshot, worktree
from flows.new_data import taking_in, train_champion_further
from flows.process.exits import BUG
from flows.process.patience import retry
from flows.process.runner import StageError, echo, in_background, reports_errors
from flows.process.signals import stop_on_signals
from flows.record.alarms import alarm, link_of
from flows.record.costs import costs, expected
from flows.record.documents import CHECKPOINT_CONFIG
from flows.record.lineage import FLOW_RUN_ID, FLOW_RUN_NAME, training_name
from flows.record.run import identity_of
from flows.record.server import tracking_uri, ui_command
from flows.record.summary import Outcome, summarize
from transformer_core.cli.arguments import Parser
from transformer_core.config import PARAMS_FILE, Machine, Params, check_params, load_params
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, first_line, machine_errors
from transformer_core.files import read_json, write_text
from transformer_core.yaml_io import parse_yaml, yaml_text

TO_RESUME = "Correct what it names, and run the pipeline again: it goes on from there."
SECONDS_BETWEEN_CHECKS = 30.0
_CLOSING_SECONDS = 5.0


@flow(name="pipeline", description="The stages of dvc.yaml in order, up to the first that fails, with a summary as artifacts.")
def pipeline(
    recipe: str | None = None,
    overrides: dict[str, Any] | None = None,
    last_stage: str | None = None,
    corpus: str | None = None,
    from_champion: bool = False,
) -> State[Any] | int:
    """Run the stages of dvc.yaml in order, up to the first that fails, and write a summary as artifacts.

    A run with a recipe or overrides works in a worktree, and its outputs are in DVC's cache. After a failure the same run goes on in it.

    Args:
        recipe: the recipe of this run; None for params.yaml as it is.
        overrides: values by key for this run, as {"train.updates": 50}.
        last_stage: the stage to end with.
        corpus: take in what is new of this corpus first; no stage runs if nothing is.
        from_champion: with a corpus, train the registry's champion further in place of a new model.

    Returns:
        0, or a failed state whose result is a `StageError` with the exit code of the stage that failed: Prefect's worker raises it.
    """
    try:
        with machine_errors("pipeline", "Use a machine with more."), staying_running():
            names = stages_up_to(last_stage)
            document = settings_of_run(recipe, overrides or {}) if recipe is not None or overrides else None
            if corpus is None and from_champion:
                raise configuration_error("from_champion: needs a corpus", "Name it, or leave from_champion out.")
            if corpus is None:
                run_with(document, names)
            else:
                run_on_new_data(corpus, document, names, from_champion)
    except (UserError, StageError) as error:
        failure = StageError(error.exit_code, str(error)) if isinstance(error, UserError) else error
        return Failed(message=str(failure), data=failure)
    return int(ExitCode.DONE)


def staying_running() -> AbstractContextManager[None]:
    """Set the current flow run to Running again if it is marked as crashed during the block, so that it can be cancelled.

    After the server was away, the automation for lost machines fires before the first heartbeat arrives. A temporary server has none.
    """
    if not PREFECT_API_URL.value():
        return nullcontext()
    context, run = copy_context(), UUID(str(flow_run.get_id()))
    return in_background(lambda stop: context.run(_stay_running, run, stop), "staying-running", _CLOSING_SECONDS)


def _stay_running(run: UUID, stop: Event) -> None:
    while not stop.wait(SECONDS_BETWEEN_CHECKS):
        with suppress(Exception), get_client(sync_client=True) as client:  # Prefect may be away.
            state = client.read_flow_run(run).state
            if state and state.is_crashed():
                client.set_flow_run_state(run, Running(message="Marked as crashed, but alive"), force=True)


def run_on_new_data(corpus: str, document: dict[str, Any] | None, names: Sequence[str], from_champion: bool) -> None:
    """Take in what is new of a corpus and run stages on it. Raises as `taking_in`, `train_champion_further` and `run_with`."""
    with taking_in(corpus, check_params(document) if document else load_params()) as new:
        get_run_logger().info("New of %s since the last run: %s", corpus, ", ".join(new) or "nothing, so no stage runs")
        if new and from_champion:
            document = document or settings_of_run(None, {})
            train_champion_further(document)
        if new:
            run_with(document, names)


def run_with(document: Mapping[str, Any] | None, names: Sequence[str]) -> None:
    """Run stages here, or with a document as params.yaml in a worktree. Raises as `worktree` and `run_stages`."""
    if document is None:
        run_stages(names)
        return
    with worktree(snapshot(), document) as folder:
        get_run_logger().info("This run works in %s", folder)
        run_stages(names, folder)
        settings = folder.with_suffix(".yaml")
        write_text(settings, yaml_text(document))
        here = f"cp {settings.relative_to(Path.cwd())} {PARAMS_FILE} && dvc repro {names[-1]}"
        get_run_logger().info("The outputs are in DVC's cache. To have them here: %s", here)


def run_stages(names: Sequence[str], folder: Path = Path()) -> None:
    """Run stages in a folder up to the first that fails, and leave a summary. Raises what the task of that one has raised."""
    outcomes: dict[str, Outcome] = {}
    state: State[Outcome] | None = None
    with chdir(folder):
        params = load_params()
        name_run(f"{training_name(params)}, {params.train.updates:,} updates")
        get_run_logger().info(expected(changed_from(names), params))
        for name in names:
            # Called, not submitted, because a signal ends only the processes of tasks on the main thread. `wait_for` draws an arrow.
            run: Any = stage_task.with_options(name=name, task_run_name=name)
            state = cast(State[Outcome], run(name, params.machine, return_state=True, wait_for=[state] if state else None))
            outcome = state.result(raise_on_failure=False)
            if isinstance(outcome, BaseException):
                raise outcome
            outcomes[name] = outcome
            if outcome.code:
                break
        wait_for_prefect(params.machine.patience_hours)
        leave_artifacts(outcomes, params)
    for ended in outcomes.values():
        if ended.code:
            raise StageError(ended.code, ended.message)


@task(description="A stage of dvc.yaml, run by DVC", cache_policy=NO_CACHE)
def stage_task(name: str, machine: Machine) -> State[Outcome] | Outcome:
    """Run a stage. Failures that may pass are tried again, but not by Prefect's retries, which have a count and no memory of progress."""
    began = time.monotonic()
    environment = {FLOW_RUN_ID: flow_run.get_id() or "", FLOW_RUN_NAME: flow_run.get_name() or ""}
    try:
        done = reproduce(name, machine, get_run_logger().info, environment=environment)
    except StageError as error:
        reason = str(error).removesuffix(f" (exit code {error.exit_code})")
        alarm(machine, environment[FLOW_RUN_ID], f"{name}-failed", str(error), TO_RESUME, flow_run.get_flow_run_ui_url() or "")
        outcome = Outcome(name, "failed", error.exit_code, time.monotonic() - began, reason)
        return Failed(message=str(error), data=outcome)  # Shown as one line; a raised error as a traceback.
    outcome = Outcome(name, done, ExitCode.DONE, time.monotonic() - began)
    return Completed(name="Cached", data=outcome) if done == "cached" else outcome


def leave_artifacts(outcomes: Mapping[str, Outcome], params: Params) -> None:
    """Write the summary to the terminal, and as an artifact of the run."""
    link = training_link() if "train" in outcomes and not outcomes["train"].code else ""
    spent = dict(costs({name: one.seconds for name, one in outcomes.items() if one.done != "cached"}, params))
    spent["kwh"] = {name: kwh for name, kwh in spent["kwh"].items() if not outcomes[name].code}
    summary = summarize(outcomes, link, ui_command(tracking_uri(params.machine)), spent)
    create_markdown_artifact(key="pipeline", markdown=summary, description="What the run did")
    echo(summary, sys.stdout)


def training_link() -> str:
    """Return the address in MLflow of the training whose checkpoints are here; empty if its record is not."""
    if not CHECKPOINT_CONFIG.exists():
        return ""
    return link_of(identity_of(read_json(CHECKPOINT_CONFIG)["training"]))


def name_run(name: str) -> None:
    """Name the current flow run, unless somebody has named it: Prefect's own names are two words without a meaning."""
    context = FlowRunContext.get()
    if context and context.flow_run and re.fullmatch(r"[a-z]+-[a-z]+", context.flow_run.name):
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(context.flow_run.id, name)
        context.flow_run.name = name


def wait_for_prefect(hours: float) -> None:
    """Wait until the configured server answers, for these hours at most: without it a run whose stages are done would be lost.

    Stages and their tasks need no server. A temporary one is not waited for.
    """
    if PREFECT_API_URL.value():
        retry(hours, partial(ask_prefect, "The stages are done"), partial(echo, stream=sys.stderr))


def ask_prefect(remedy: str) -> None:
    """Ask Prefect's server for its health; without one a temporary server is started. Raises `UserError` (69): it is unreachable."""
    with get_client(sync_client=True) as client:
        if trouble := client.api_healthcheck():
            raise UserError(f"Prefect at {client.api_url} is unreachable: {first_line(trouble)}", remedy, ExitCode.UNAVAILABLE)


def reach_prefect() -> None:
    """Check the configured Prefect server, or start a temporary one that outlives the stages: it ignores the signals of a terminal.

    Raises `UserError` (69): the configured server is unreachable.
    """
    terminal = {signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, terminal)
    try:
        ask_prefect("Start it, unset PREFECT_API_URL for a temporary one, or do without Prefect: dvc repro")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, terminal)
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


def run_flow(parameters: Mapping[str, Any]) -> int:
    """Run the flow and return its exit code; 75 after a signal, once all its processes have ended. Raises `UserError` (69): no server."""
    stop_on_signals()
    state: State[Any] | None = None
    try:
        reach_prefect()
        # Few retries, because a temporary server that the same signal ended does not come back; Prefect would try for a minute.
        with temporary_settings({} if PREFECT_API_URL.value() else {PREFECT_CLIENT_MAX_RETRIES: 1}):
            state = cast(State[Any], pipeline(**parameters, return_state=True))
        result = state.result(raise_on_failure=False)
    except (Interrupted, Exception) as error:
        if stopped := _stop_behind(error):
            raise Interrupted(stopped) from None
        if not isinstance(error, httpx.TransportError):
            raise
        result = error
    if isinstance(result, httpx.TransportError):
        remedy = "The outputs of finished stages are kept. Start it, and run this again to resume."
        raise UserError(f"Prefect is unreachable: {first_line(result)}", remedy, ExitCode.UNAVAILABLE)
    if state and not state.is_completed():
        echo(state.message or state.name or "failed", sys.stderr)
    if isinstance(result, StageError):
        return result.exit_code
    return result if isinstance(result, int) else BUG


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline as a Prefect flow, on the configured server or a temporary one. Ends with the exit code of the stage that failed."""
    parser = Parser(prog="python -m flows.pipeline", description=main.__doc__)
    parser.add_argument("--recipe", metavar="NAME", help="recipe of this run (default: params.yaml as it is)")
    setting = "a setting of this run: train.updates=50"
    parser.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[], type=_override, help=setting)
    parser.add_argument("--last-stage", metavar="STAGE", help="stage to end with")
    parameters = vars(parser.parse_args(arguments))
    parameters["overrides"] = dict(parameters["overrides"])
    settings_of_run(parameters["recipe"], parameters["overrides"])  # The flow does so too, but a temporary server takes 10 seconds.
    return run_flow(parameters)


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, parse_yaml(value, f"--set {key}")


if __name__ == "__main__":
    raise SystemExit(main())
