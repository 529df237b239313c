"""What a flow needs of Prefect: a server, a name of its run, and an exit code at its end."""

import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, cast

import httpx
import psutil
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.process.exits import BUG
from flows.process.patience import Patience
from flows.process.runner import StageError, echo, reports_errors
from flows.process.signals import stop_on_signals
from transformer_core.errors import ExitCode, Interrupted, UserError, first_line


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
