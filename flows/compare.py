"""`python -m flows.compare RUN_A RUN_B`: two MLflow runs side by side, their settings, metrics and translations."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from flows.process.paths import HYPOTHESES
from flows.process.runner import reports_errors
from flows.record.run import REFERENCES, SOURCES
from flows.record.server import PARENT_TAG, connect, reaching, search
from flows.record.store import tracking_uri
from transformer_core.cli.arguments import Parser
from transformer_core.config import load_params
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.evaluation.bleu import tokenizer_in
from transformer_core.evaluation.comparison import comparison_text, side_by_side
from transformer_core.evaluation.neural import with_comet
from transformer_core.evaluation.scoring import read_aligned, scoring_of
from transformer_core.files import sha256_of
from transformer_core.tasks import task_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_NAMED = 5


class TestSet(NamedTuple):
    """The local files of a test set and of its translations."""

    sources: Path
    references: Path
    hypotheses: Path


@dataclass(frozen=True)
class Evaluated:
    """An evaluation run with the settings of its training beside its own, and its test sets by the SHA-256 of their references.

    Its name has that of its training, because two evaluations with the same search may have the same name.
    """

    name: str
    run_id: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    tests: Mapping[str, TestSet]


def find_evaluation(client: "MlflowClient", wanted: str) -> "tuple[Run, Run | None]":
    """Return an evaluation and its training, if recorded; for a training its latest evaluation.

    `wanted` is the beginning of a run's name, of its training's fingerprint, or of its id. Raises `UserError`: 78; no such run, or several;
    65, a training without an evaluation.
    """
    run = _find(client, wanted)
    if run.data.tags.get("kind") == "evaluation":
        parent = run.data.tags.get(PARENT_TAG)
        return run, client.get_run(parent) if parent else None
    children = search(client, f"tags.`{PARENT_TAG}` = '{run.info.run_id}' AND tags.kind = 'evaluation'")
    if not children:
        raise UserError(f"run {wanted}: has no evaluation", "Make one with: dvc repro --force --single-item evaluate")
    return children[0], run


def _find(client: "MlflowClient", wanted: str) -> "Run":
    """Return the latest finished run that matches; all that match must be of the same training, which may have been started again.

    A run that has not finished counts only if no finished one matches. A name may be given without the score before its first comma.
    """
    found = [(run, {run.info.run_id, run.info.run_name, run.data.tags.get("fingerprint")} - {None}) for run in search(client, "")]
    exact = [run for run, names in found if wanted in names]
    begins = [run for run, names in found if any(f", {name}".find(f", {wanted}") >= 0 for name in names)] if wanted else []
    runs = exact or [run for run in begins if run.info.status == "FINISHED"] or begins
    if not runs:
        named = ", ".join(repr(run.info.run_name) for run, _ in found[:_NAMED])
        remedy = f"The latest: {named}." if named else "Look at another record with MLFLOW_TRACKING_URI."
        raise configuration_error(f"run {wanted!r}: MLflow has no run of this id, name or fingerprint", remedy)
    different = sorted({str(run.data.tags.get("fingerprint") or run.info.run_id) for run in runs})
    if len(different) > 1:
        raise configuration_error(f"run {wanted}: may be {', '.join(different[:4])}", "Give more of the name, or the run's id.")
    return max(runs, key=lambda run: (run.info.status == "FINISHED", run.info.start_time))


def fetch(client: "MlflowClient", wanted: str, folder: Path) -> Evaluated:
    """Find an evaluation, and copy its translations and its test sets into an empty folder.

    Raises `UserError`: as `find_evaluation`; exit code 65, the run holds no translations or no test set.
    """
    run, training = find_evaluation(client, wanted)
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
    return Evaluated(name, run.info.run_id, settings, run.data.metrics, tests)


def table_of(name: str, a: Mapping[str, object], b: Mapping[str, object], changed: bool = False) -> str:
    """Return names and values in both runs as a table, with "-" where a run has none; only those that differ if `changed`."""
    names = [key for key in sorted(a.keys() | b.keys()) if not changed or a.get(key) != b.get(key)]
    shown: Sequence[tuple[str, str, str]] = [(name, "A", "B"), *((key, _shown(a.get(key)), _shown(b.get(key))) for key in names)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(f"{key:<{widths[0]}}  {left:>{widths[1]}}  {right:>{widths[2]}}" for key, left, right in shown)


def _compared(tokenize: str, comet: str | None, a: TestSet, b: TestSet) -> str:
    """Return the comparison on a test set, under the names that it has in both runs if these are not both "test"."""
    right, translated_a, translated_b, source = read_aligned(a.references, a.hypotheses, b.hypotheses, a.sources)
    scoring = scoring_of(task_of(a.references.suffix[1:]), tokenize)
    with with_comet(scoring, comet, "evaluate.comet", lambda _: source) as scoring:
        text = comparison_text(side_by_side(scoring, translated_a, translated_b, right, source))
    names = a.references.stem, b.references.stem
    return text if names == ("test", "test") else f"Test set: {names[0]} of A, {names[1]} of B\n{text}"


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


@reports_errors
def main(arguments: list[str] | None = None) -> int:
    """Print the comparison and return the exit code; 65, the runs were scored against different references."""
    parser = Parser(
        prog="python -m flows.compare", description="Compare two MLflow runs: settings, metrics and translations.", allow_abbrev=False
    )
    for name in ("a", "b"):
        text = "the beginning of a run's name, fingerprint or id; none: a list of the latest"
        parser.add_argument(name, metavar=f"RUN_{name.upper()}", nargs="?", default="", help=text)
    chosen = parser.parse_args(arguments)
    params = load_params()
    uri = tracking_uri(params.machine)
    with TemporaryDirectory() as folder:
        with reaching(uri):
            client = connect(uri)
            a, b = (fetch(client, wanted, Path(folder) / name) for name, wanted in (("a", chosen.a), ("b", chosen.b)))
        shared = [(test, b.tests[references]) for references, test in a.tests.items() if references in b.tests]
        if not shared:
            fault = f"runs {a.name} and {b.name}: were scored against different references"
            raise UserError(fault, "Name two runs with the same test set.")
        tokenize = tokenizer_in(a.settings.get("signature", ""))
        compared = [_compared(tokenize, params.evaluate.comet, *tests) for tests in shared]
    settings = table_of("setting", a.settings, b.settings, changed=True) if a.settings != b.settings else "The settings are the same."
    heading = f"A is {a.name} ({a.run_id})\nB is {b.name} ({b.run_id})"
    parts = [heading, settings, table_of("metric", a.metrics, b.metrics), *compared]
    sys.stdout.buffer.write("\n\n".join(parts).encode(errors="surrogateescape") + b"\n")
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
