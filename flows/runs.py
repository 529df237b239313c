"""What the flows share with Prefect: the server, a run's name and end, tasks that are tried again, the progress of a stage."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Event
from typing import Any, cast
from uuid import UUID

import httpx
import psutil
from prefect import Flow, get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Completed, Failed, Running
from prefect.tasks import Task

from flows.dvc.commands import without_advice
from flows.process.child import StageLog
from flows.process.exits import BUG
from flows.process.patience import Patience
from flows.process.progress import update_resumed
from flows.process.runner import StageError, echo, in_background, reports_errors
from flows.process.signals import stop_on_signals
from flows.record.summary import Outcome
from transformer_core.errors import ExitCode, Interrupted, UserError, first_line

SECONDS_BETWEEN_CHECKS = 30.0
_CLOSING_SECONDS = 5.0


def name_run(name: str) -> None:
    """Name the current flow run, unless somebody has named it: Prefect's own names are two words without a meaning."""
    context = FlowRunContext.get()
    if context and context.flow_run and re.fullmatch(r"[a-z]+-[a-z]+", context.flow_run.name):
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(context.flow_run.id, name)
        context.flow_run.name = name


@contextmanager
def staying_running() -> Iterator[None]:
    """Set the current flow run to Running again if it is marked as crashed during the block, as it is alive.

    After the server was away, the automation for lost machines fires before the first heartbeat arrives. A temporary server has none.
    """
    if not PREFECT_API_URL.value():
        yield
        return
    context, run = copy_context(), UUID(str(flow_run.get_id()))
    with in_background(lambda stop: context.run(_stay_running, run, stop), "staying-running", _CLOSING_SECONDS):
        yield


def _stay_running(run: UUID, stop: Event) -> None:
    stopped = False
    while not stopped:
        stopped = stop.wait(SECONDS_BETWEEN_CHECKS)
        with suppress(Exception), get_client(sync_client=True) as client:  # Prefect may be away.
            state = client.read_flow_run(run).state
            if state and state.is_crashed():
                client.set_flow_run_state(run, Running(message="Marked as crashed, but alive"), force=True)


def wait_for_prefect(hours: float) -> None:
    """Wait until the configured server answers, for these hours at most: without it a run whose stages are done would be lost.

    Stages and their tasks need no server. A temporary one is not waited for.
    """
    patience, told = Patience(hours), False
    while PREFECT_API_URL.value():
        with get_client(sync_client=True) as client:
            trouble = client.api_healthcheck()
        pause = patience.pause_after(ExitCode.UNAVAILABLE) if trouble else None
        if pause is None:
            return
        if not told:
            echo(f"Prefect does not answer: {first_line(cast(Exception, trouble))}. The stages are done; waiting for it.", sys.stderr)
            told = True
        time.sleep(pause)


def failed(error: StageError | UserError) -> State[Any]:
    """Return a failed state. Its result is a `StageError`: where a worker runs the flow, Prefect raises the result."""
    result = StageError(error.exit_code, str(error)) if isinstance(error, UserError) else error
    return Failed(message=str(result), data=result)


def outcome_of(state: State[Any]) -> Outcome:
    """Return the result of a task that returns an `Outcome`, also if it failed. Raises any other exception that ended it."""
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return cast(Outcome, result)


def raise_failure(outcomes: Iterable[Outcome]) -> None:
    """Raise a `StageError` for the first outcome that is a failure."""
    for outcome in outcomes:
        if outcome.code:
            raise StageError(outcome.code, outcome.message.removesuffix(f" (exit code {outcome.code})"))


class Output(StageLog):
    """The output of a stage, in the log of the running task; `resumed` is the update from which its training has gone on last."""

    def __init__(self, show: Callable[[float], None] = lambda _: None) -> None:
        super().__init__(without_advice(lambda line: get_run_logger().info(line)), show)
        self.resumed = 0

    def __call__(self, line: str) -> None:
        self.resumed = update_resumed(line) or self.resumed
        super().__call__(line)


def outcome_task(
    name: str, run_name: str, description: str, output: Output, body: Callable[[], str], hours: float, stopping: Event
) -> Task[[], Any]:
    """Return a Prefect task that runs `body` and returns its `Outcome`. A failure that may pass is tried again, see `Patience`.

    Not by Prefect's retries, which have a count and no memory of progress. The log has a line for each try.

    Args:
        name: of the task.
        run_name: of its run, and of its outcome.
        output: receives the output of `body`.
        body: returns what was done ("ran", "cached"), or raises `StageError` or `UserError`.
        hours: how long to try again without progress.
        stopping: ends the pause before the next try.
    """

    @task(name=name, description=description, task_run_name=run_name, cache_policy=NO_CACHE)
    def run() -> State[Outcome] | Outcome:
        patience = Patience(hours)
        while True:
            started, output.last_line = time.monotonic(), ""
            try:
                done = body()
            except (StageError, UserError) as error:
                pause = patience.pause_after(error.exit_code, output.resumed)
                if pause is not None and not stopping.is_set():
                    get_run_logger().warning("%s. Trying again in %.0f seconds", str(error).rstrip("."), pause)
                    if not stopping.wait(pause):
                        continue
                outcome = Outcome(run_name, "failed", error.exit_code, time.monotonic() - started, str(error))
                # A returned state is shown as one line, a raised error as a traceback.
                return Failed(message=outcome.message, data=outcome)
            outcome = Outcome(run_name, done, ExitCode.DONE, time.monotonic() - started)
            return Completed(name="Cached", data=outcome) if done == "cached" else outcome

    return run


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
