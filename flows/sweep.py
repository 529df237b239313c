"""Sweeps: the pipeline over many settings, as the rows of one table.

    python -m flows.sweep table3 --recipe multi30k --seeds 3 --updates 2000
    python -m flows.sweep table2 --recipe tatoeba
    python -m flows.sweep params train.warmup=200,400 train.seed=1,2

Each row and seed without a result is trained in its own worktree, with the cache of this repository. The table is in a folder of
results/sweeps named after the table or the grid, as CSV and markdown.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.tasks import Task

from flows.dvc.settings import tracked
from flows.dvc.worktree import Snapshot, remove, snapshot
from flows.process.child import terminate_children
from flows.process.gpus import visible_gpus
from flows.process.runner import StageError, reports_errors
from flows.record import server
from flows.record.run import NAME, SCORES_STEP, RunRecord, flatten, read_record
from flows.record.sending import background_sender
from flows.record.store import tracking_uri
from flows.record.summary import Outcome
from flows.runs import Output, failed, outcome_of, outcome_task, raise_failure, run_flow, staying_running, wait_for_prefect
from flows.sweeps import table as tables
from flows.sweeps.jobs import Job, code_digest, job_of, run_job
from flows.sweeps.rows import Row, choose, document_of, grid_rows, scale_for, table2_rows, table3_rows
from transformer_core import recipes
from transformer_core.cli.arguments import Parser, positive_int
from transformer_core.config import PARAMS_FILE, Machine, Params, check_params, load_params
from transformer_core.corpus.sources.catalogue import find_entry
from transformer_core.corpus.sources.fetching import lock_file, locked_sums
from transformer_core.corpus.sources.translated import registered_models
from transformer_core.errors import ExitCode, configuration_error
from transformer_core.files import read_json
from transformer_core.schema import validate_document

NAMES = ("table3", "table2", "params")
RESULTS = Path("results/sweeps")
_LONGEST_NAME = 100
_SECONDS_BETWEEN_SIGNALS = 5


@dataclass(frozen=True)
class Sweep:
    """A sweep: the jobs in the order of the table, the files of their code, and the heading."""

    jobs: Sequence[Job]
    files: Snapshot
    about: tables.About

    @property
    def missing(self) -> list[Job]:
        """The jobs without a result."""
        return [job for job in self.jobs if not job.result.exists()]

    @property
    def folder(self) -> Path:
        """The folder of the table. Each grid has its own, named after its settings; characters that are awkward in a path become `_`."""
        words = "-".join([self.about.name, *self.about.settings])
        name = re.sub(r"[^\w.,=-]", "_", words, flags=re.ASCII)[:_LONGEST_NAME]
        return RESULTS / (name if name == words else f"{name}-{sha256(words.encode()).hexdigest()[:8]}")

    @property
    def identity(self) -> str:
        """The name of the sweep's record: the same for the same jobs."""
        return f"sweep-{self.about.name}-{sha256(' '.join(job.key for job in self.jobs).encode()).hexdigest()[:12]}"


def plan(
    name: str,
    settings: Sequence[str] = (),
    recipe: str | None = None,
    rows: Sequence[str] | None = None,
    seeds: int | None = None,
    updates: int | None = None,
    scale: int | None = None,
) -> Sweep:
    """Plan the jobs of a sweep and check the settings of all.

    Raises `UserError` (78): an unknown recipe, row, key or corpus, an invalid value, no git repository, or a corpus without known sums.
    """
    if settings and name != "params":
        raise configuration_error(f"{settings[0]}: {name} takes no settings", "Use --updates, or a sweep of params.")
    if scale and name == "params":
        raise configuration_error("--scale: params has no scale", "It is for table2 and table3.")
    files = snapshot()
    base = validate_document(Params, tracked(), PARAMS_FILE) if recipe is None else recipes.load(recipe)
    scale = scale or (1 if name == "params" else scale_for(base))
    sections = base.model_dump(mode="json", exclude={"machine"})
    sections["model"] = base.model.model_dump(mode="json", exclude_none=True)
    chosen = choose(_rows(name, settings, scale), rows)
    for option, key, given in (("--updates", "train.updates", updates), ("--seeds", "train.seed", seeds)):
        if given and any(key in row.overrides for row in chosen):
            raise configuration_error(f"{option}: the settings name {key}", "Use one of the two.")
    digest, jobs = code_digest(files.tree), []
    for row in chosen:
        for seed in [None] if "train.seed" in row.overrides else range(base.train.seed, base.train.seed + (seeds or 1)):
            document = document_of(row, sections, seed, updates)
            check_params(document)
            jobs.append(job_of(row.name, document["train"]["seed"], document, digest))
    for corpus in {job.document["download"]["corpus"] for job in jobs}:
        _check_locked(corpus)
    machine = load_params().machine
    price = None if machine.price_per_hour is None else machine.price_per_hour * machine.training_nodes
    about = tables.About(name, recipe or PARAMS_FILE.name, scale, settings, price)
    return Sweep(jobs, files, about)


def _check_locked(corpus: str) -> None:
    """Raise `UserError` (78) for a file or model whose sum is not known: each workspace would fetch it again, unchecked."""
    found = find_entry(corpus)
    remedy = "Fetch the corpus once, by `python -m flows.pipeline --recipe NAME --last-stage download`, and commit that file."
    read = {corpus: [source for several in found.entry.sources.values() for source in several]}
    for wanted in (source.translated for source in found.entry.splits.train if source.translated):
        # Its translations are not read, see `TranslatedSource.sources`.
        train = find_entry(wanted.corpus, named_in=f"{found.path}: translated.corpus").entry.splits.train
        read.setdefault(wanted.corpus, [source for source in train if not source.translated])
    for name, sources in read.items():
        unknown = any(source.mtdata or any(file.sha256 is None for file in (source.https or {}).values()) for source in sources)
        if unknown and not lock_file(name).exists():
            raise configuration_error(f"{lock_file(name)}: missing, but files of {name} have no published sums", remedy)
    for model in registered_models(found):
        if model not in locked_sums(lock_file(corpus)):
            raise configuration_error(f"{lock_file(corpus)}: has no sum of {model}", remedy)


def _rows(name: str, settings: Sequence[str], scale: int) -> list[Row]:
    if name == "params":
        return grid_rows(settings)
    return table3_rows(scale) if name == "table3" else table2_rows(scale)


@flow(name="sweep", description="The trainings of a sweep that have no result yet, each as a task.")
def sweep(planned: Sweep, at_once: int) -> State[Any] | int:
    """Train the jobs without a result, `at_once` at a time, each as a task.

    Returns:
        0, or a failed state whose result is a `StageError` with the exit code of a job that failed.
    """
    for job in planned.jobs:
        if job.result.exists():  # A kill may have prevented the removal of its worktree.
            remove(job.workspace)
    machine, stopping = load_params().machine, Event()
    if machine.devices is None and (gpus := len(visible_gpus())):  # A training takes all free ones, and others would wait for it.
        machine = machine.model_copy(update={"devices": max(1, gpus // at_once)})
    with suppress(Exception):  # Creates the experiment once, not in each row; MLflow may be unreachable.
        server.experiment_id(server.connect(tracking_uri(machine)))

    def run(job: Job) -> Outcome:
        return outcome_of(job_task(job, planned.files, machine, stopping)(return_state=True))

    first, *others = planned.missing
    try:
        with staying_running():
            # The first job runs alone, so that the stages before the training run once and are cached for the others.
            outcomes = [run(first)]
            # Called, not submitted, because a signal ends only the processes of tasks on the main thread.
            outcomes += [run(job) for job in others] if at_once == 1 else _side_by_side(others, run, at_once, stopping)
            wait_for_prefect(machine.patience_hours)
            raise_failure(outcomes)
    except StageError as error:
        return failed(error)
    return int(ExitCode.DONE)


def _side_by_side(jobs: Sequence[Job], run: Callable[[Job], Outcome], at_once: int, stopping: Event) -> list[Outcome]:
    """Run jobs in threads; those of one training one after the other, because the second takes it from the run-cache."""
    pool, trainings = ThreadPoolExecutor(at_once, "row"), defaultdict[str, list[Job]](list)
    for job in jobs:
        trainings[job.training].append(job)

    def run_all(several: Sequence[Job]) -> list[Outcome]:
        return [run(job) for job in several if not stopping.is_set()]

    futures = [pool.submit(copy_context().run, run_all, several) for several in trainings.values()]
    try:
        return [outcome for future in futures for outcome in future.result()]
    except BaseException:  # A signal, which only the main thread receives.
        stopping.set()
        pool.shutdown(wait=False, cancel_futures=True)
        running = {future for future in futures if not future.cancelled()}  # `wait` never reports cancelled ones as done.
        while running:  # Repeatedly: a thread may have been about to start its child.
            terminate_children()
            running = wait(running, timeout=_SECONDS_BETWEEN_SIGNALS).not_done
        raise
    finally:
        pool.shutdown()


def job_task(job: Job, files: Snapshot, machine: Machine, stopping: Event) -> Task[[], Any]:
    """Return the Prefect task of a job, tried again like a stage of the pipeline unless the whole sweep is stopping."""
    output = Output()

    def train() -> str:
        run_job(job, files, machine, output)
        return "ran"

    return outcome_task("row", job.name, f"The training {job.name}", output, train, machine.patience_hours, stopping)


def write_table(planned: Sweep) -> str:
    """Write the table of the jobs with a result, and return its markdown."""
    # A result may be of another sweep, in which its row had another name.
    results = [{**_result(job), "row": job.row, "seed": job.seed} for job in planned.jobs if job.result.exists()]
    table = tables.beside_the_paper(tables.summarize(results), planned.about.name)
    text = tables.markdown(table, results, planned.about)
    tables.write(table, text, planned.folder)
    return text


def _result(job: Job) -> dict[str, Any]:
    result: dict[str, Any] = read_json(job.result, "Remove it, then run the sweep again.")
    return result


def record(planned: Sweep, machine: Machine) -> None:
    """Record the sweep in MLflow: a run with the table, and a child run with the settings and figures of each job."""
    run = RunRecord(id=planned.identity)
    run.tags = {NAME: f"sweep {planned.about.name}", "kind": "sweep"}
    run.parameters = flatten(asdict(planned.about))
    for job in planned.jobs:
        # With the sweep, because a run has one parent and other sweeps may have the same job.
        row = RunRecord(id=f"{planned.identity}-{job.key[:16]}", parent=planned.identity)
        row.tags = {NAME: job.name, "kind": "row"}
        row.parameters = flatten(job.document)
        figures = _result(job)
        row.measure(SCORES_STEP, {name: figures[name] for name in ("parameters", "minutes", "flops", *tables.FIGURES)})
        row.end()
    run.attach_files(sorted(planned.folder.iterdir()))
    run.end()
    with background_sender(run, tracking_uri(machine)):
        pass


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Train the rows of a table that have no result yet, and write the table to a folder of results/sweeps."""
    options = vars(_parser().parse_intermixed_args(arguments))  # Settings may stand after options.
    at_once = options.pop("at_once")
    planned = plan(**options)
    done, missing = len(planned.jobs) - len(planned.missing), len(planned.missing)
    print(f"{len(planned.jobs)} trainings, {done} of them done, {missing} to run", file=sys.stderr)
    code = run_flow(sweep, {"planned": planned, "at_once": at_once}) if missing else int(ExitCode.DONE)
    if any(job.result.exists() for job in planned.jobs):
        print(write_table(planned))
        print(f"{planned.folder}: table.csv, table.md")
    if not code and read_record(planned.identity) is None:  # An earlier call may have been stopped before the record.
        record(planned, load_params().machine)
    return code


def _parser() -> Parser:
    parser = Parser(prog="python -m flows.sweep", description=main.__doc__)
    parser.add_argument("name", choices=NAMES, help="a table of the paper, or a grid of settings")
    parser.add_argument("settings", nargs="*", metavar="KEY=V1,V2", help="values of a setting, for the sweep params: train.warmup=200,400")
    parser.add_argument("--recipe", metavar="NAME", help="corpus and training (default: params.yaml as it is)")
    parser.add_argument("--rows", metavar="A,B", type=lambda text: text.split(","), help="rows of the table (default: all)")
    parser.add_argument("--seeds", metavar="N", type=positive_int, help="trainings of each row, each with another seed (default: 1)")
    parser.add_argument("--updates", metavar="N", type=positive_int, help="updates of each training (default: the recipe's)")
    parser.add_argument(
        "--scale",
        metavar="S",
        type=positive_int,
        help="divide the paper's widths by S (default: the power of two at which base is not wider than the recipe's model)",
    )
    parser.add_argument("--at-once", metavar="K", type=positive_int, default=1, help="number of trainings side by side (default: 1)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
