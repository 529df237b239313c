"""`python -m flows.compare RUN_A RUN_B`: two MLflow runs side by side, their settings, metrics and translations."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from flows.process.paths import HYPOTHESES
from flows.process.runner import reports_errors
from flows.record.run import REFERENCES, SOURCES
from flows.record.server import PARENT_TAG, connect, reaching, search
from flows.record.store import tracking_uri
from transformer_core.cli.arguments import Parser
from transformer_core.config import load_params
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.evaluation.bleu import tokenizer_in
from transformer_core.evaluation.comparison import SideBySide, comparison_text, side_by_side
from transformer_core.evaluation.scoring import read_aligned, scoring_of
from transformer_core.tasks import task_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_NAMED = 5


@dataclass(frozen=True)
class Evaluated:
    """An evaluation run with the settings of its training beside its own, and its translations and test set in local files.

    Its name has that of its training, because two evaluations with the same search may have the same name.
    """

    name: str
    run_id: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    references_sha256: str
    hypotheses: Path
    sources: Path
    references: Path


def compare(a: Evaluated, b: Evaluated) -> SideBySide:
    """Score both runs' outputs against their test set. Raises `UserError` (65): they were scored against different references."""
    if a.references_sha256 != b.references_sha256:
        message = f"runs {a.name} and {b.name}: were scored against different references"
        raise UserError(message, "Name two runs with the same test set.")
    right, translated_a, translated_b, source = read_aligned(a.references, a.hypotheses, b.hypotheses, a.sources)
    scoring = scoring_of(task_of(a.references.suffix[1:]), tokenizer_in(a.settings.get("signature", "")))
    return side_by_side(scoring, translated_a, translated_b, right, source)


def find_evaluation(client: "MlflowClient", wanted: str) -> "tuple[Run, Run | None]":
    """Return an evaluation and its training, if recorded; for a training its latest evaluation.

    If the training is a repetition with the same validation scores, as one with the same code is, the evaluation may be a child of an
    earlier run: DVC skips stage evaluate, whose inputs are the same.

    `wanted` is the beginning of a run's name, of its training's fingerprint, or of its id. Raises `UserError`: 78; no such run, or several,
    or one that is neither; 65, a training without an evaluation.
    """
    run = _find(client, wanted)
    kind, parent = run.data.tags.get("kind"), run.data.tags.get(PARENT_TAG)
    if kind == "evaluation":
        return run, client.get_run(parent) if parent else None
    if kind or parent:
        raise configuration_error(
            f"run {wanted}: neither a training nor an evaluation", "Name one of them, or one of its children in MLflow."
        )
    others = search(client, f"tags.fingerprint = '{run.data.tags['fingerprint']}'") if "fingerprint" in run.data.tags else []
    for training in (run, *(other for other in others if _validation(other) == _validation(run))):
        if children := search(client, f"tags.`{PARENT_TAG}` = '{training.info.run_id}' AND tags.kind = 'evaluation'"):
            return children[0], run
    raise UserError(f"run {wanted}: a training without an evaluation", "Make one with: dvc repro --force --single-item evaluate")


def _validation(training: "Run") -> dict[str, float]:
    """Return the last validation scores of a training."""
    return {name: value for name, value in training.data.metrics.items() if name.startswith("valid/")}


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
        listed = f"{', '.join(different[:4])}{' and others' if len(different) > 4 else ''}"
        raise configuration_error(f"run {wanted}: may be {listed}", "Give more of the name, or the run's id.")
    return max(runs, key=lambda run: (run.info.status == "FINISHED", run.info.start_time))


def fetch(client: "MlflowClient", wanted: str, folder: Path) -> Evaluated:
    """Find an evaluation, and copy its translations and its test set into an empty folder.

    Raises `UserError`: as `find_evaluation`; exit code 65, the run holds no translations or no test set.
    """
    run, training = find_evaluation(client, wanted)
    name = run.info.run_name or run.info.run_id
    kept = {item.path for item in client.list_artifacts(run.info.run_id)}
    if missing := [file for file in (HYPOTHESES, SOURCES, REFERENCES) if file not in kept]:
        raise UserError(f"run {name}: holds no {missing[0]}", "Send what is left with: python -m flows.tracking sync")
    folder.mkdir()
    hypotheses, *sides = (Path(client.download_artifacts(run.info.run_id, file, str(folder))) for file in (HYPOTHESES, SOURCES, REFERENCES))
    sources, references = (next(side.iterdir()) for side in sides)
    settings = dict(run.data.params)
    if training:
        # The last values of the settings that were changed when it went on are tags (flows/record/sending.py).
        own = {key: training.data.tags.get(key, value) for key, value in training.data.params.items()}
        name, settings = f"{name}, of {training.info.run_name}", own | settings
    scored_against = settings.pop("references_sha256")
    return Evaluated(name, run.info.run_id, settings, run.data.metrics, scored_against, hypotheses, sources, references)


def paired(a: Mapping[str, object], b: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Return name and value in both runs, in order of name; None where a run has none."""
    return [(name, a.get(name), b.get(name)) for name in sorted(a.keys() | b.keys())]


def table_of(name: str, rows: Sequence[tuple[str, object, object]]) -> str:
    """Return names and values in both runs as a table, with "-" where a run has none."""
    shown = [(name, "A", "B"), *((key, *("-" if value is None else _shown(value) for value in values)) for key, *values in rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join(f"{key:<{widths[0]}}  {a:>{widths[1]}}  {b:>{widths[2]}}" for key, a, b in shown)


def _shown(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


@reports_errors
def main(arguments: list[str] | None = None) -> int:
    """Print the comparison and return the exit code."""
    parser = Parser(
        prog="python -m flows.compare", description="Compare two MLflow runs: settings, metrics and translations.", allow_abbrev=False
    )
    for name in ("a", "b"):
        parser.add_argument(name, metavar=f"RUN_{name.upper()}", help="the beginning of a run's name, fingerprint or id")
    chosen = parser.parse_args(arguments)
    uri = tracking_uri(load_params().machine)
    with TemporaryDirectory() as folder:
        with reaching(uri):
            client = connect(uri)
            a, b = (fetch(client, wanted, Path(folder) / name) for name, wanted in (("a", chosen.a), ("b", chosen.b)))
        compared = compare(a, b)
    heading = f"A is {a.name} ({a.run_id})\nB is {b.name} ({b.run_id})"
    changed = [row for row in paired(a.settings, b.settings) if row[1] != row[2]]
    settings = table_of("setting", changed) if changed else "The settings are the same."
    parts = [heading, settings, table_of("metric", paired(a.metrics, b.metrics)), comparison_text(compared)]
    sys.stdout.buffer.write("\n\n".join(parts).encode(errors="surrogateescape") + b"\n")
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
