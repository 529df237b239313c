"""The record of a run on disk, from which flows/record/sending.py brings MLflow up to date. Each run has a folder:

    .state/record/ID/run.json       what the run is, see `RunRecord`
    .state/record/ID/*.csv          rows over time, of a training: updates, validation, skipped, machine-NODE
    .state/record/ID/artifacts/     files, as MLflow stores them
    .state/record/ID/sent           the server that has all of it, see sending.py

The folder is not that of the training's state, because DVC's next run removes a state whose record may be unsent.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from flows.process.paths import UPDATES, VALIDATION, VALIDATION_SCORE
from transformer_core.errors import UserError
from transformer_core.files import new_file, read_json, repository, sha256_of, state_folder, write_json
from transformer_core.schema import check_document

RUN_FILE = "run.json"
ARTIFACTS = "artifacts"
# Tags that MLflow's pages show at the top of a run: its name and commit.
NAME = "mlflow.runName"
COMMIT = "mlflow.source.git.commit"
# Tag of a training; several may have one fingerprint.
FINGERPRINT = "fingerprint"
# Tag of a training that was stopped or failed, by its last process.
EXIT_CODE = "exit_code"
# The step of scores of the test set, whose names have no prefix. MLflow 3.17 draws a metric as a bar if all its runs have it at step 0, and
# else as lines, of which one would be a dot; and it always shows the section of metrics without a prefix, which would be empty.
SCORES_STEP = 0
# The folders of the two sides of the test set among the artifacts of an evaluation.
SOURCES, REFERENCES = "sources", "references"
# MLflow's page of system metrics shows names with this prefix.
SAMPLES = "system/"
# A metric that every sample of a machine has.
CPU = "cpu_utilization_percentage"
_REMEDY = "Remove its folder: what was not sent from it to MLflow is lost."


def now_ms() -> int:
    """Return the time as MLflow has it, in milliseconds."""
    return time.time_ns() // 1_000_000


class Score(BaseModel, extra="ignore", strict=True):
    """A single number of a run."""

    value: float
    step: int


class Table(NamedTuple):
    """A table of metrics over time: what the names of its metrics begin with, and a metric that every row has."""

    path: Path
    prefix: str
    in_every_row: str


class RunRecord(BaseModel, extra="ignore", strict=True):
    """What MLflow is to show of a run. Nothing is on disk before `write`, except the files that `attach_files` copies.

    Its id is the name of its folder, and MLflow's tag `record`: random for a training; for another run made from its content, so that the
    same run is recorded once.
    """

    id: str = Field(pattern=r"^\w[\w.-]*$")
    parent: str = ""  # Id of the run that this one is a child of.
    status: Literal["RUNNING", "FINISHED", "FAILED", "KILLED"] = "RUNNING"  # KILLED is a run that was stopped and can be resumed.
    start_ms: int = Field(default_factory=now_ms)
    end_ms: int | None = None
    parameters: dict[str, str] = {}
    tags: dict[str, str] = {}
    metrics: dict[str, Score] = {}
    artifacts: dict[str, str] = {}  # SHA-256 of the attached files, by their path in MLflow.
    score: str = ""  # Name of a training's scores in the column `VALIDATION_SCORE`.

    @property
    def folder(self) -> Path:
        """The folder of this run."""
        return records() / self.id

    def measure(self, step: int, values: Mapping[str, float], context: str = "") -> None:
        """Set numbers at a step. A context is prefixed to their names: nll of context valid is "valid/nll"."""
        for name, value in values.items():
            self.metrics[f"{context}/{name}" if context else name] = Score(value=float(value), step=step)

    def attach_files(self, paths: Sequence[Path], folder: str = "") -> None:
        """Keep copies of files: the next run may replace them before they are sent. The folder is that in MLflow."""
        for path in paths:
            name = f"{folder}/{path.name}" if folder else path.name
            with new_file(self.folder / ARTIFACTS / name) as temporary:
                temporary.write_bytes(path.read_bytes())
            self.artifacts[name] = sha256_of(self.folder / ARTIFACTS / name)

    def end(self, status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED") -> None:
        """Set the end of the run to now, and write the record."""
        self.status, self.end_ms = status, now_ms()
        self.write()

    def write(self) -> None:
        """Write `RUN_FILE`, atomically."""
        write_json(self.folder / RUN_FILE, self.model_dump())

    def tables(self) -> Iterator[Table]:
        """Yield the tables that are there. The first node's samples have the names of MLflow's own monitor."""
        named = [Table(self.folder / UPDATES.name, "train/", "loss"), Table(self.folder / VALIDATION.name, "valid/", "nll")]
        for path in sorted(self.folder.glob("machine-*.csv")):
            node = path.stem.removeprefix("machine-")
            named.append(Table(path, SAMPLES if node == "0" else f"{SAMPLES}node_{node}/", CPU))
        yield from (table for table in named if table.path.exists())

    def rows(self, table: Table, known: set[int]) -> Iterator[tuple[int, int, dict[str, float]]]:
        """Yield step, time and metrics of the rows of a table whose step is not known. An incomplete last line is none yet.

        A line that does not begin with a number has the names of the columns from there on. A row's time follows from its seconds, so it
        is the same whenever it is read. Raises `UserError` (65): the table is damaged.
        """
        names: list[str] = []
        try:
            for line in table.path.read_text(encoding="utf-8").split("\n")[:-1]:
                first, *cells = line.split(",")
                if not first.isdigit():
                    names = [f"{table.prefix}{self.score if column == VALIDATION_SCORE else column}" for column in cells]
                elif int(first) not in known:
                    values = {name: float(cell) for name, cell in zip(names, cells, strict=True)}
                    time_ms = self.start_ms + round(1000 * values.pop(f"{table.prefix}seconds"))
                    yield int(first), time_ms, values
        except (ValueError, KeyError, OverflowError):
            raise UserError(f"{table.path}: not a table of a training", _REMEDY) from None


def records() -> Path:
    """Return the folder of all records: with the states of trainings, so that a training may go on in another clone or machine."""
    return repository() / state_folder() / "record"


def read_record(identity: str) -> RunRecord | None:
    """Return the record of a run, None if there is none here. Raises `UserError` (65): it is damaged."""
    path = records() / identity / RUN_FILE
    if not path.exists():
        return None
    record = check_document(RunRecord, read_json(path, _REMEDY), path, _REMEDY)
    if record.id != identity:
        raise UserError(f"{path}: id: must be the name of the folder, got {record.id}", _REMEDY)
    return record


def identity_of(training: Mapping[str, Any]) -> str:
    """Return the id of the training in a model's config.json; of a model made elsewhere, which has none, its fingerprint stands for it."""
    return str(training.get("run") or training["fingerprint"])


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested sections: {"train": {"warmup": 400}} becomes {"train.warmup": "400"}."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": str(value)}
    return flat
