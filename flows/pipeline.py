"""The flow: the stages of dvc.yaml in order, one Prefect task each. DVC decides which stages run; Prefect shows, retries and stops them."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.tasks import Task

from flows.dvc.commands import dvc, failure, repair, search_path, stage_names
from flows.dvc.settings import MACHINE, settings_of_run
from flows.dvc.worktree import snapshot, worktree
from flows.process.child import TimeLimitError, run_child
from flows.process.runner import StageError, echo, exit_file, reports_errors
from flows.record import server
from flows.record.documents import CHECKPOINT_CONFIG
from flows.record.lineage import FLOW_RUN_ID, FLOW_RUN_NAME, training_name
from flows.record.run import identity_of
from flows.record.store import tracking_uri
from flows.record.summary import Outcome, summarize, table_of
from flows.runs import (
    Output,
    ProgressBar,
    failed,
    name_run,
    outcome_of,
    outcome_task,
    raise_failure,
    run_flow,
    staying_running,
    wait_for_prefect,
)
from transformer_core.cli.arguments import Parser
from transformer_core.config import PARAMS_FILE, Machine, load_params
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line, machine_errors
from transformer_core.files import write_text
from transformer_core.yaml_io import parse_yaml, yaml_text

SUMMARY_ARTIFACT, TABLE_ARTIFACT = "pipeline", "pipeline-stages"
TRAIN = "train"


@flow(
    name="pipeline",
    description="The stages of dvc.yaml in order, up to the first that fails, with a summary as artifacts.",
)
def pipeline(
    recipe: str | None = None, overrides: dict[str, Any] | None = None, first_stage: str | None = None, last_stage: str | None = None
) -> State[Any] | int:
    """Run the stages of dvc.yaml in order, up to the first that fails, and write a summary as artifacts.

    A run with a recipe or overrides works in a worktree, and its outputs are in DVC's cache. After a failure the same run goes on in it.

    Args:
        recipe: the recipe of this run; None for params.yaml as it is.
        overrides: values by key for this run, as {"train.updates": 50}.
        first_stage: the stage to begin with; earlier stages keep their present outputs.
        last_stage: the stage to end with.

    Returns:
        0, or a failed state whose result is a `StageError` with the exit code of the stage that failed.
    """
    try:
        with machine_errors("pipeline", "Use a machine with more."), staying_running():
            if recipe is None and not overrides:
                run_stages(first_stage, last_stage)
            else:
                run_in_worktree(settings_of_run(recipe, overrides or {}), first_stage, last_stage)
    except (UserError, StageError) as error:
        return failed(error)
    return int(ExitCode.DONE)


def run_in_worktree(document: Mapping[str, Any], first_stage: str | None, last_stage: str | None) -> None:
    """Run stages with other settings in a worktree named after them. Raises as `worktree` and `run_stages`."""
    names = stage_names()
    chosen = stages_between(first_stage, last_stage, names)
    tracked = {name: section for name, section in document.items() if name != MACHINE}
    key = sha256(json.dumps(tracked, sort_keys=True).encode()).hexdigest()[:16]
    with worktree(key, snapshot(), document, chosen[-1], names[: names.index(chosen[0])]) as folder:
        get_run_logger().info("This run works in %s", folder)
        run_stages(first_stage, last_stage, folder)
        settings = folder.with_suffix(".yaml")
        write_text(settings, yaml_text(document))
        here = f"cp {settings.relative_to(Path.cwd())} {PARAMS_FILE} && dvc repro {chosen[-1]}"
        get_run_logger().info("The outputs are in DVC's cache. To have them here: %s", here)


def run_stages(first_stage: str | None, last_stage: str | None, folder: Path = Path()) -> None:
    """Run the stages from one to another in a folder, and leave a summary. Raises `StageError`: one failed."""
    outcomes: dict[str, Outcome] = {}
    state: State[Any] | None = None
    with chdir(folder):
        params = load_params()
        name_run(f"{training_name(params)}, {params.train.updates:,} updates")
        for name in stages_between(first_stage, last_stage, stage_names()):
            # Called, not submitted, because a signal ends only the processes of tasks on the main thread. `wait_for` draws an arrow.
            state = stage_task(name, params.machine)(return_state=True, wait_for=[state] if state else None)
            outcomes[name] = outcome_of(state)
            if state.is_failed():
                break
        wait_for_prefect(params.machine.patience_hours)
        leave_artifacts(outcomes, params.machine)
    raise_failure(outcomes.values())


def leave_artifacts(outcomes: Mapping[str, Outcome], machine: Machine) -> None:
    """Write the summary to the terminal, and as artifacts: a table, and a text with the score and a link to the training in MLflow."""
    link = training_link(machine) if TRAIN in outcomes and not outcomes[TRAIN].code else ""
    table = table_of(outcomes.values())
    summary = summarize(table, outcomes, link, server.ui_command(tracking_uri(machine)))
    create_table_artifact(key=TABLE_ARTIFACT, table=table, description="What each stage did")
    create_markdown_artifact(key=SUMMARY_ARTIFACT, markdown=summary, description="What the run did")
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


def stage_task(name: str, machine: Machine) -> Task[[], Any]:
    """Return the Prefect task of a stage, named after it."""
    output = Output(ProgressBar(name).show)
    description = f"Stage {name} of dvc.yaml, run by DVC"
    return outcome_task(name, name, description, output, lambda: run_in_dvc(name, machine, output), machine.patience_hours, Event())


def run_in_dvc(name: str, machine: Machine, output: Output) -> str:
    """Run a stage with DVC, and return "ran" or "cached". Raises `StageError`: it failed, or exceeded `machine.limit_hours`."""
    ended = exit_file(name)
    ended.unlink(missing_ok=True)
    repair()
    limit = machine.limit_hours
    command = dvc("repro", "--single-item", name)
    environment = {"PATH": search_path(), FLOW_RUN_ID: flow_run.get_id() or "", FLOW_RUN_NAME: flow_run.get_name() or ""}
    try:
        code = run_child(command, output, limit_seconds=limit and 3600 * limit, environment=environment)
    except TimeLimitError:
        raise StageError(ExitCode.INTERRUPTED, f"{name}: ended after machine.limit_hours ({limit:g})") from None
    if code:
        raise StageError(*failure(name, code, output.last_line))
    return "ran" if ended.exists() else "cached"


def training_link(machine: Machine) -> str:
    """Return the address in MLflow of the training whose checkpoints are here; empty if it has none, or MLflow is unreachable."""
    uri = tracking_uri(machine)
    if not CHECKPOINT_CONFIG.exists():
        return ""
    from transformer_core.models.directory import read_config  # Here: torch takes seconds to load.

    try:
        training = identity_of(read_config(CHECKPOINT_CONFIG).training.model_dump())
        runs = server.search(server.connect(uri), f"tags.{server.RECORD} = '{training}'")
        return server.run_link(uri, runs[0]) if runs else ""
    except Exception as error:  # A table without a link is better than none.
        get_run_logger().warning("No link to MLflow: %s", first_line(error))
        return ""


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline as a Prefect flow, on the configured server or a temporary one.

    Ends with 0, or the exit code of the stage that failed; 75 after a signal, once all its processes have ended.
    """
    parameters = parse(arguments)
    settings_of_run(parameters["recipe"], parameters["overrides"])  # The flow does so too, but a temporary server takes 10 seconds.
    return run_flow(pipeline, parameters)


def parse(arguments: Sequence[str] | None) -> dict[str, Any]:
    """Return the flow's parameters from a command line."""
    parser = Parser(prog="python -m flows.pipeline", description=main.__doc__)
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
