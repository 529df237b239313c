"""The flow: the DAG of dvc.yaml, one Prefect task a stage, in order; DVC decides what runs, Prefect retries, shows and stops it."""

import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, cast

from dvc.exceptions import DvcException  # type: ignore[import-untyped]
from dvc.repo import Repo  # type: ignore[import-untyped]
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Failed
from prefect.tasks import Task, exponential_backoff

from flows import tracking
from flows.child import run_child
from flows.lineage import FLOW_RUN_ID, FLOW_RUN_NAME
from flows.paths import METRICS, PUBLISHED
from flows.runner import BUG, exit_file, stop_on_signals
from transformer_core.config import load_params, tracking_uri
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error
from transformer_core.files import read_json

RETRIES = 3
FIRST_RETRY_SECONDS = 10.0
KILLED, TERMINATED = 128 + signal.SIGKILL, 128 + signal.SIGTERM
TRANSIENT = frozenset({ExitCode.UNAVAILABLE, ExitCode.INTERRUPTED, KILLED, TERMINATED})
ARTIFACT = "pipeline"
EVALUATE, PUBLISH = "evaluate", "publish"
_STAGE_ENDED = re.compile(r"exited with (-?\d+)$")  # How DVC says it: dvc.stage.exceptions.StageCmdFailedError.


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: what was done ("ran", "cached", "failed"), its exit code, how long it took, and why it failed."""

    stage: str
    done: str
    code: int
    seconds: float
    message: str = ""


@flow(name="pipeline")
def pipeline() -> State[int] | int:
    """Run every stage of dvc.yaml in order, up to the first that fails, and keep the table of what was done as an artifact.

    Returns:
        0, or a failed state whose data is the exit code of the stage that failed.
    """
    try:
        names = stage_names()
    except UserError as error:
        return Failed(message=str(error), data=int(error.exit_code))
    outcomes: dict[str, Outcome] = {}
    for name in names:
        # Called, not submitted: only on the main thread does a signal end what the task has started.
        state = stage_task(name)(return_state=True)
        outcomes[name] = cast(Outcome, state.result(raise_on_failure=False))
        if state.is_failed():
            break
    summary = summarize(outcomes)
    create_markdown_artifact(key=ARTIFACT, markdown=summary, description="What each stage did")
    print(summary)
    failed = next((outcome for outcome in outcomes.values() if outcome.code), None)
    return Failed(message=failed.message, data=failed.code) if failed else int(ExitCode.DONE)


def stage_names(root: Path = Path()) -> list[str]:
    """The stages of a DVC repository in an order in which they can run.

    Raises:
        UserError: exit code 78; there is no repository, or its dvc.yaml is wrong.
    """
    try:
        with Repo(str(root)) as repo:
            graph = repo.index.graph
            needed = {stage.name: [other.name for other in graph.successors(stage) if other.cmd] for stage in graph if stage.cmd}
    except DvcException as error:
        raise configuration_error(tracking.first_line(error), "Run this at the top of the repository; check it with: dvc status") from None
    return list(TopologicalSorter(needed).static_order())


def stage_task(name: str) -> Task[[], Any]:
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
        outcome = run_in_dvc(name)
        # A returned state is retried like an exception, and shown as the stage's own line rather than as a traceback.
        return Failed(message=outcome.message, data=outcome) if outcome.code else outcome

    return run


def is_transient(_task: Task[..., Any], task_run: TaskRun, state: State[Outcome]) -> bool:
    """Whether to run a failed stage again: not for bad data or settings, and `RETRIES` times at most.

    The count is kept here because Prefect, once its own is used up, logs an empty traceback.
    """
    outcome = state.result(raise_on_failure=False)
    return isinstance(outcome, Outcome) and outcome.code in TRANSIENT and task_run.run_count <= RETRIES


def run_in_dvc(name: str) -> Outcome:
    """Let DVC run the stage or take it from its cache; its lines go to the log of the running task.

    DVC skips a stage whose output is there, and of `publish` that is a file, which says nothing about the registry: where the
    registry has not got the model (another server, a deleted one), the stage is forced.
    """
    started = time.monotonic()
    outcome = _repro(name, started)
    if name == PUBLISH and outcome.done == "cached":
        try:
            if not in_registry():
                get_run_logger().info("The registry has not got the model of %s: publishing again", PUBLISHED)
                return _repro(name, started, "--force")
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
    return tracking.registered(uri, published["name"], published["version"])


def _repro(name: str, started: float, *options: str) -> Outcome:
    logger = get_run_logger()
    ended = exit_file(name)
    ended.unlink(missing_ok=True)
    last = ""

    def on_line(line: str) -> None:
        nonlocal last
        if line.strip():
            logger.info(line)
            last = line

    # dvc.yaml says `python`: the one that runs this, whichever comes first in the user's path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", *options, name]
    environment = {"PATH": path, FLOW_RUN_ID: flow_run.get_id() or "", FLOW_RUN_NAME: flow_run.get_name() or ""}
    code = run_child(command, on_line, environment=environment)
    seconds = time.monotonic() - started
    if code == ExitCode.DONE:
        return Outcome(name, "ran" if ended.exists() else "cached", ExitCode.DONE, seconds)
    code, message = _why(name, code, last)
    return Outcome(name, "failed", code, seconds, f"{message} (exit code {code})")


def _why(name: str, dvc_code: int, last_line: str) -> tuple[int, str]:
    """Exit code and reason of a stage that failed: its own word, or, where it was killed before it had one, what DVC saw."""
    ended = exit_file(name)
    if ended.exists():
        said = read_json(ended)
        reason = str(UserError(said["message"], said["remedy"]))
        return said["code"], reason if reason.startswith(f"{name}:") else f"{name}: {reason}"
    seen = _STAGE_ENDED.search(last_line)
    code = int(seen.group(1)) if seen else dvc_code
    if code < 0:  # The signal that ended it, as Python tells it; a shell adds 128.
        code = 128 - code
    return code or BUG, f"{name}: {last_line.removeprefix('ERROR: ') or 'DVC ended without a word'}"


def summarize(outcomes: Mapping[str, Outcome]) -> str:
    """What was done, as markdown: the table of the stages; BLEU and the model's run in MLflow where this flow has got so far."""
    rows = [f"| {o.stage} | {o.done} | {o.seconds:,.1f} |" for o in outcomes.values()]
    parts = ["\n".join(["| stage | | seconds |", "|---|---|---:|", *rows])]
    succeeded = {name for name, outcome in outcomes.items() if not outcome.code}
    if EVALUATE in succeeded and METRICS.exists():
        figures = read_json(METRICS)
        synthetic = " (synthetic)" if figures["synthetic"] else ""
        parts.append(f"BLEU **{figures['bleu']:.2f}** on the test set of {figures['corpus']}{synthetic}")
    if PUBLISH in succeeded and (link := _model_link()):
        parts.append(f"[The model and its training in MLflow]({link})")
    parts += [f"**{o.message}**" for o in outcomes.values() if o.code]
    return "\n\n".join(parts)


def _model_link() -> str:
    if not PUBLISHED.exists():
        return ""
    uri = tracking_uri(load_params().machine)
    try:
        return tracking.run_link(tracking.connect(uri), uri, read_json(PUBLISHED)["run_id"])
    except Exception as error:  # A table without a link is better than none.
        get_run_logger().warning("No link to MLflow: %s", tracking.first_line(error))
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
        raise UserError(f"Prefect at {client.api_url} is away: {tracking.first_line(trouble)}", remedy, ExitCode.UNAVAILABLE)


def _stop_behind(error: BaseException | None) -> str:
    """The request to stop that an error came from: after a signal to a whole group the server is away and Prefect fails to tell it."""
    while error is not None:
        if isinstance(error, Interrupted | TerminationSignal):
            return str(error) if isinstance(error, Interrupted) else f"stopped by {signal.Signals(error.signal).name}"
        error = error.__context__
    return ""


def main() -> int:
    """`python -m flows.pipeline`: 0, or the exit code of the stage that failed; 75 after a signal, once all below has ended."""
    stop_on_signals()
    try:
        reach_prefect()
        # A temporary server that is away, ended by the same signal, does not come back: Prefect would try for a minute.
        with temporary_settings({} if PREFECT_API_URL.value() else {PREFECT_CLIENT_MAX_RETRIES: 1}):
            state = pipeline(return_state=True)
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


if __name__ == "__main__":
    raise SystemExit(main())
