"""`python -m flows.compare RUN_A RUN_B`: two MLflow runs side by side, their settings, metrics and translations."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from flows.process.paths import MANIFEST, RAW, require
from flows.process.runner import reports_errors
from flows.record.server import PARENT_TAG, connect, experiment_id, reaching, search
from transformer_core.config import load_params, tracking_uri
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.evaluation.comparison import SideBySide, scores_table, sentences_text, side_by_side
from transformer_core.evaluation.metrics import read_aligned
from transformer_core.files import read_json, sha256_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

HYPOTHESES = "test.hyp"
REFERENCES = "references_sha256"


@dataclass(frozen=True)
class Evaluated:
    """An evaluation run, with the settings of its training beside its own, and its translations of the test set in a local file."""

    name: str
    run_id: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    hypotheses: Path


def compare(a: Evaluated, b: Evaluated) -> SideBySide:
    """Score both runs' translations against the test set here.

    Raises:
        UserError: exit code 65; there is no test set here, or one of the runs was not scored against it.
    """
    require(MANIFEST)
    manifest = read_json(MANIFEST)
    references, sources = (RAW / f"test.{manifest[side]}" for side in ("target", "source"))
    here = sha256_of(references)
    for evaluated in (a, b):
        there = evaluated.settings.get(REFERENCES)
        if there is None:
            raise UserError(f"run {evaluated.name}: has no hash of its references", "Run stage evaluate for it again.")
        if there != here:
            raise UserError(
                f"run {evaluated.name}: was scored against other references than {references}",
                "Check out the commit and the data of that run: git checkout, dvc checkout.",
            )
    right, translated_a, translated_b, source = read_aligned(references, a.hypotheses, b.hypotheses, sources)
    return side_by_side(translated_a, translated_b, right, source)


def find_evaluation(client: "MlflowClient", wanted: str) -> "tuple[Run, Run | None]":
    """An evaluation and its training, if recorded; for a training its latest evaluation.

    `wanted` is a run's id, or the beginning of its name or of its training's fingerprint.

    Raises:
        UserError: exit code 78; no such run, or several; 65, a training without an evaluation.
    """
    run = _find(client, wanted)
    if parent := run.data.tags.get(PARENT_TAG):
        return run, client.get_run(parent)
    children = _runs(client, f"tags.`{PARENT_TAG}` = '{run.info.run_id}' AND tags.kind = 'evaluation'")
    if not children:
        raise UserError(f"run {wanted}: a training without an evaluation", "Make one with: dvc repro evaluate")
    return children[0], run


def _find(client: "MlflowClient", wanted: str) -> "Run":
    """The latest of the matching runs, which must be of the same training (it may have been forced again)."""
    if "'" in wanted or not wanted:
        raise configuration_error(f"run {wanted!r}: no run has such a name")
    fields = ("attributes.run_id", "attributes.run_name", "tags.fingerprint")
    exact = [run for field in fields for run in _runs(client, f"{field} = '{wanted}'")]
    begun = [run for field in fields[1:] for run in _runs(client, f"{field} LIKE '{wanted}%'")]
    runs = {run.info.run_id: run for run in exact or begun}
    if not runs:
        raise configuration_error(f"run {wanted}: MLflow has no run of this id, name or fingerprint")
    different = sorted({str(run.data.tags.get("fingerprint") or run.info.run_id) for run in runs.values()})
    if len(different) > 1:
        listed = f"{', '.join(different[:4])}{' and others' if len(different) > 4 else ''}"
        raise configuration_error(f"run {wanted}: may be {listed}", "Write more of it, or the run's id.")
    return max(runs.values(), key=lambda run: run.info.start_time)


def _runs(client: "MlflowClient", wanted: str) -> "list[Run]":
    return search(client, experiment_id(client), wanted)


def fetch(client: "MlflowClient", wanted: str, folder: Path) -> Evaluated:
    """Find an evaluation and copy its translations into an empty folder.

    Raises:
        UserError: as `find_evaluation`; exit code 65, the run holds no translations.
    """
    run, training = find_evaluation(client, wanted)
    name = run.info.run_name or run.info.run_id
    if HYPOTHESES not in {item.path for item in client.list_artifacts(run.info.run_id)}:
        raise UserError(f"run {name}: holds no {HYPOTHESES}", "Send what is left with: python -m flows.tracking sync")
    folder.mkdir()
    hypotheses = Path(client.download_artifacts(run.info.run_id, HYPOTHESES, str(folder)))
    settings = {**(training.data.params if training else {}), **run.data.params}
    return Evaluated(name, run.info.run_id, settings, run.data.metrics, hypotheses)


def settings_table(a: Evaluated, b: Evaluated) -> str:
    """The settings that differ, "-" if a run has none; the references' sum is no setting."""
    import pandas as pd

    table = pd.DataFrame({"A": pd.Series(a.settings, dtype=str), "B": pd.Series(b.settings, dtype=str)}).fillna("-")
    table = table.drop(REFERENCES, errors="ignore").sort_index()
    different = table[table["A"] != table["B"]]
    return different.rename_axis(columns="setting").to_string() if len(different) else "The settings are the same."


def metrics_table(a: Evaluated, b: Evaluated) -> str:
    """All metrics that either run has recorded, side by side."""
    import pandas as pd

    table = pd.DataFrame({"A": pd.Series(a.metrics, dtype=float), "B": pd.Series(b.metrics, dtype=float)}).sort_index()
    return table.rename_axis(columns="metric").to_string(float_format="{:.2f}".format, na_rep="-")


@reports_errors
def main(arguments: list[str] | None = None) -> int:
    """Print the comparison and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flows.compare", description="Two MLflow runs side by side.", allow_abbrev=False)
    for name in ("a", "b"):
        parser.add_argument(name, metavar=f"RUN_{name.upper()}", help="a run's id, or the beginning of its name or fingerprint")
    chosen = parser.parse_args(arguments)
    uri = tracking_uri(load_params().machine)
    with TemporaryDirectory() as folder:
        with reaching(uri):
            client = connect(uri)
            a, b = (fetch(client, wanted, Path(folder) / name) for name, wanted in (("a", chosen.a), ("b", chosen.b)))
        compared = compare(a, b)
    heading = "\n".join(f"{letter} is {one.name} ({one.run_id})" for letter, one in (("A", a), ("B", b)))
    parts = [heading, settings_table(a, b), metrics_table(a, b), scores_table(compared), sentences_text(compared)]
    sys.stdout.buffer.write("\n\n".join(parts).encode() + b"\n")
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
