"""`python -m flows.compare RUN RUN`: two MLflow runs side by side on the terminal, or any number on a page (`--page FILE`)."""

import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from flows import runs_page
from flows.process.paths import HYPOTHESES
from flows.process.runner import reports_errors
from flows.record.run import EXIT_CODE, REFERENCES, SOURCES, now_ms
from flows.record.server import PARENT_TAG, RECORD, connect, reaching, run_link, search, tracking_uri
from transformer_core.cli.arguments import Parser, positive_float
from transformer_core.config import Params, load_params
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.evaluation.bleu import tokenizer_for
from transformer_core.evaluation.comparison import comparison_text, side_by_side
from transformer_core.evaluation.neural import with_comet
from transformer_core.evaluation.scoring import Scoring, read_aligned, scoring_of
from transformer_core.files import sha256_of, write_text
from transformer_core.tasks import all_tasks, task_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_MS_PER_DAY = 86_400_000


class TestSet(NamedTuple):
    """The local files of a test set and of its translations."""

    sources: Path
    references: Path
    hypotheses: Path


class Evaluated(NamedTuple):
    """An evaluation run with the settings of its training beside its own, and its test sets by the SHA-256 of their references.

    Its name has that of its training, because two evaluations with the same search may have the same name.
    """

    name: str
    run_id: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    tests: Mapping[str, TestSet]
    training: "Run | None"

    def scoring(self, references: Path) -> Scoring:
        """Return the scoring of a test set, with the tokeniser of this run."""
        tokenizer = self.settings.get("evaluate.tokenize") or tokenizer_for(references, self.settings.get("signature", ""))
        return scoring_of(task_of(references.suffix[1:]), tokenizer)


def find_evaluation(client: "MlflowClient", wanted: str, known: "list[Run]") -> "tuple[Run, Run | None]":
    """Return an evaluation among the known runs and its training, if recorded; for a training its latest evaluation.

    `wanted` begins a run's name, its training's fingerprint, or its id. Raises `UserError`: 78, no such run, or several; 65, no evaluation.
    """
    run = _find(known, wanted)
    if run.data.tags.get("kind") == "evaluation":
        parent = run.data.tags.get(PARENT_TAG)
        return run, client.get_run(parent) if parent else None
    children = search(client, f"tags.`{PARENT_TAG}` = '{run.info.run_id}' AND tags.kind = 'evaluation'")
    if not children:
        raise UserError(f"run {wanted}: has no evaluation", "Send what is left with: python -m flows.tracking sync")
    return children[0], run


def _find(known: "list[Run]", wanted: str) -> "Run":
    """Return the latest finished run that matches; all that match must be of the same training, which may have been started again.

    A run that has not finished counts only if no finished one matches. A name may be given without the score before its first comma.
    """
    found = [
        (run, {run.info.run_id, run.info.run_name, run.data.tags.get("fingerprint"), run.data.tags.get(RECORD)} - {None}) for run in known
    ]
    exact = [run for run, names in found if wanted in names]
    begins = [run for run, names in found if any(f", {name}".find(f", {wanted}") >= 0 for name in names)] if wanted else []
    runs = exact or [run for run in begins if run.info.status == "FINISHED"] or begins
    if not runs:
        named = ", ".join(repr(run.info.run_name) for run, _ in found[:5])
        remedy = f"The latest: {named}." if named else "Look at another record with MLFLOW_TRACKING_URI."
        raise configuration_error(f"run {wanted!r}: MLflow has no run of this id, name or fingerprint", remedy)
    different = sorted({str(run.data.tags.get("fingerprint") or run.info.run_id) for run in runs})
    if len(different) > 1:
        raise configuration_error(f"run {wanted}: may be {', '.join(different[:4])}", "Give more of the name, or the run's id.")
    return max(runs, key=lambda run: (run.info.status == "FINISHED", run.info.start_time))


def fetch(client: "MlflowClient", wanted: str, folder: Path, known: "list[Run]") -> Evaluated:
    """Find an evaluation among the known runs, and copy its translations and its test sets into an empty folder.

    Raises `UserError`: as `find_evaluation`; exit code 65, the run holds no translations or no test set.
    """
    run, training = find_evaluation(client, wanted, known)
    name, kept = run.info.run_name or run.info.run_id, {item.path for item in client.list_artifacts(run.info.run_id)}
    if missing := [file for file in (HYPOTHESES, SOURCES, REFERENCES) if file not in kept]:
        raise UserError(f"run {name}: holds no {missing[0]}", "Send what is left with: python -m flows.tracking sync")
    folder.mkdir()
    sides = (Path(client.download_artifacts(run.info.run_id, side, str(folder))) for side in (SOURCES, REFERENCES))
    tests: dict[str, TestSet] = {}
    for source, reference in zip(*(sorted(side.iterdir(), key=lambda file: file.stem) for side in sides), strict=True):
        hypotheses = client.download_artifacts(run.info.run_id, f"{reference.stem}.hyp", str(folder))
        tests.setdefault(sha256_of(reference), TestSet(source, reference, Path(hypotheses)))
    settings = dict(run.data.params)
    if training:
        # The last values of the settings that were changed when it went on are tags (flows/record/sending.py).
        own = {key: training.data.tags.get(key, value) for key, value in training.data.params.items()}
        name, settings = f"{name}, of {training.info.run_name}", own | settings
    return Evaluated(name, run.info.run_id, settings, run.data.metrics, tests, training)


def table_of(name: str, a: Mapping[str, object], b: Mapping[str, object], changed: bool = False) -> str:
    """Return names and values in both runs as a table, with "-" where a run has none; only those that differ if `changed`."""
    names = [key for key in sorted(a.keys() | b.keys()) if not changed or a.get(key) != b.get(key)]
    shown = [(name, "A", "B"), *((key, _shown(a.get(key)), _shown(b.get(key))) for key in names)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(f"{key:<{widths[0]}}  {left:>{widths[1]}}  {right:>{widths[2]}}" for key, left, right in shown)


def _compared(of: Evaluated, comet: str | None, a: TestSet, b: TestSet) -> str:
    """Return the comparison on a test set, under the names that it has in both runs if these are not both "test"."""
    right, translated_a, translated_b, source = read_aligned(a.references, a.hypotheses, b.hypotheses, a.sources)
    with with_comet(of.scoring(a.references), comet, "evaluate.comet", lambda _: source) as scoring:
        text = comparison_text(side_by_side(scoring, translated_a, translated_b, right, source))
    names = a.references.stem, b.references.stem
    return text if names == ("test", "test") else f"Test set: {names[0]} of A, {names[1]} of B\n{text}"


def chosen_runs(chosen: Namespace, client: "MlflowClient") -> list[str]:
    """Return the runs that a command names: by themselves, a sweep and an experiment. Raises `UserError` (78): none, or no such."""
    names = list(chosen.runs)
    if chosen.sweep:
        file = Path("results/sweeps", chosen.sweep, "runs.txt")
        if not file.exists():
            raise configuration_error(f"{file}: no such file", "Make it with: python -m flows.sweep")
        names += file.read_text(encoding="utf-8").split()
    names += [run.info.run_id for run in _in_experiment(chosen, client, "tags.kind = 'evaluation'")]
    if not names:
        raise configuration_error("no runs to compare", "Name runs, a sweep or an experiment.")
    return list(dict.fromkeys(names))


def _in_experiment(chosen: Namespace, client: "MlflowClient", wanted: str) -> "list[Run]":
    """Return the runs of the experiment that a command names, begun within its days, that a filter selects; the latest first."""
    found = client.get_experiment_by_name(chosen.experiment) if chosen.experiment else None
    if chosen.experiment and not found:
        raise configuration_error(f"--experiment: MLflow has no {chosen.experiment!r}", "Its page lists the experiments.")
    if chosen.days:
        wanted += f" AND attributes.start_time >= {now_ms() - round(chosen.days * _MS_PER_DAY)}"
    return search(client, wanted, found.experiment_id) if found else []


def _unfinished(chosen: Namespace, client: "MlflowClient") -> list[runs_page.Unfinished]:
    """Return the trainings of the experiment that failed or were stopped, by exit code, with the latest of each."""
    by_code: dict[str, list[Run]] = {}
    for run in _in_experiment(chosen, client, "attributes.status != 'FINISHED' AND attributes.status != 'RUNNING'"):
        by_code.setdefault(run.data.tags.get(EXIT_CODE, ""), []).append(run)
    found = sorted(by_code.items(), key=lambda item: item[0].zfill(3))
    return [runs_page.Unfinished(code, len(runs), str(runs[0].info.run_name)) for code, runs in found]


def write_page(chosen: Namespace, params: Params, uri: str) -> int:
    """Write the page of many runs. Raises `UserError`: as `fetch`; 65, no run has a test set."""
    with TemporaryDirectory() as folder:
        with reaching(uri):
            client = connect(uri)
            known = [*search(client, ""), *_in_experiment(chosen, client, "")]
            found = [fetch(client, name, Path(folder) / str(number), known) for number, name in enumerate(chosen_runs(chosen, client))]
            runs = [_on_page(number, run, client, uri) for number, run in enumerate(found, start=1)]
            unfinished = _unfinished(chosen, client)
        tests = []
        for references, first in found[0].tests.items():
            right, source = read_aligned(first.references, first.sources)
            shared = [(run, own.tests[references]) for run, own in zip(runs, found, strict=True) if references in own.tests]
            texts = [(run, test.references.stem, read_aligned(test.hypotheses, first.references)[0]) for run, test in shared]
            tests.append(runs_page.compared(first.references.stem, found[0].scoring(first.references), texts, right, source))
    price = params.machine.price_per_hour and params.machine.price_per_hour * params.machine.nodes("train")
    write_text(chosen.page, runs_page.render(runs, tests, unfinished, price))
    print(f"{chosen.page}: {len(runs)} runs")
    return ExitCode.DONE


def _on_page(number: int, run: Evaluated, client: "MlflowClient", uri: str) -> runs_page.Run:
    import pandas as pd

    curves: dict[str, pd.Series[float]] = {}
    seconds, training = None, run.training
    if training:
        keys = {name: [name] for name in runs_page.CURVES} | {runs_page.SCORE: [f"valid/{task.key}" for task in all_tasks()]}
        for name, key in ((name, key) for name, found in keys.items() for key in found if key in training.data.metrics):
            points = client.get_metric_history(training.info.run_id, key)
            curves[name] = pd.Series([point.value for point in points], [point.step for point in points], dtype=float)
            seconds = max(seconds or 0, (max(point.timestamp for point in points) - training.info.start_time) / 1000)
    link = run_link(uri, client.get_run(run.run_id)) if uri.startswith("http") else ""
    return runs_page.Run(number, run.name, link, run.settings, run.metrics, curves, seconds)


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


@reports_errors
def main(arguments: list[str] | None = None) -> int:
    """Print the comparison and return the exit code; 65, the runs were scored against different references."""
    purpose = "Compare MLflow runs: settings, metrics and translations."
    parser = Parser(prog="python -m flows.compare", description=purpose, allow_abbrev=False)
    of_runs = "the beginning of a run's name, fingerprint or id; none: a list of the latest"
    parser.add_argument("runs", metavar="RUN", nargs="*", help=of_runs)
    parser.add_argument("--page", metavar="FILE", type=Path, help="write an HTML page of any number of runs; the first is the base")
    parser.add_argument("--sweep", metavar="NAME", help="after these runs those of a folder of results/sweeps, for --page")
    parser.add_argument("--experiment", metavar="NAME", help="after these runs the trainings of an MLflow experiment, for --page")
    parser.add_argument("--days", metavar="N", type=positive_float, help="of the experiment only what began in the last N days")
    chosen = parser.parse_args(arguments)
    params = load_params()
    uri = tracking_uri(params.machine)
    if chosen.page:
        return write_page(chosen, params, uri)
    if named := "--sweep" if chosen.sweep else "--experiment" if chosen.experiment else "":
        raise configuration_error(f"{named}: only a page compares more than two", "Name it with: --page FILE")
    if len(chosen.runs) > 2:
        raise configuration_error(f"{len(chosen.runs)} runs: only two are compared here", "Write a page of them with: --page FILE")
    with TemporaryDirectory() as folder:
        with reaching(uri):
            client = connect(uri)
            known = search(client, "")
            a, b = (fetch(client, run, Path(folder) / name, known) for name, run in zip("ab", [*chosen.runs, "", ""], strict=False))
        shared = [(test, b.tests[references]) for references, test in a.tests.items() if references in b.tests]
        if not shared:
            fault = f"runs {a.name} and {b.name}: were scored against different references"
            raise UserError(fault, "Name two runs with the same test set.")
        compared = [_compared(a, params.evaluate.comet, *tests) for tests in shared]
    settings = table_of("setting", a.settings, b.settings, changed=True) if a.settings != b.settings else "The settings are the same."
    heading = f"A is {a.name} ({a.run_id})\nB is {b.name} ({b.run_id})"
    parts = [heading, settings, table_of("metric", a.metrics, b.metrics), *compared]
    sys.stdout.buffer.write("\n\n".join(parts).encode(errors="surrogateescape") + b"\n")
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
