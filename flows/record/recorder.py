"""The recorder of a training: tables for DVC's plots and for MLflow, lines or a progress bar on the terminal."""

import csv
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from flows.process.exits import BUG
from flows.process.paths import BINARIZED, SKIPPED, UPDATES, VALIDATION, VALIDATION_SCORE
from flows.process.progress import Progress
from flows.process.runner import echo, memory_remedy
from flows.record.alarms import Vitals, watching
from flows.record.lineage import describe_training, lineage
from flows.record.run import EXIT_CODE, FINGERPRINT, RunRecord, read_record
from flows.record.sending import background_sender
from flows.record.server import tracking_uri
from flows.record.usage import RUN
from transformer_core.config import COMET, MEASURES, PRETRAINED, Params
from transformer_core.corpus.tokens.binary import read_meta
from transformer_core.errors import ExitCode, Interrupted, machine_errors
from transformer_core.evaluation.diagnosis import unread_source
from transformer_core.files import sha256_of, write_text
from transformer_core.models.directory import WEIGHTS
from transformer_core.processes import cpu_name
from transformer_core.tasks import Task
from transformer_core.training.checkpoint import FORMAT
from transformer_core.training.devices import Rank
from transformer_core.training.records import Observer, UpdateRecord

TABLES = (UPDATES, VALIDATION, SKIPPED)


def fingerprint_of(params: Params) -> str:
    """Return the SHA-256 of what the weights after an update depend on: settings, vocabulary, data, and the format of the state.

    A training that was stopped goes on with another value of a setting that changes no weights, such as `train.patience`. Settings that are
    null are left out, so that trainings in progress can continue after a new optional setting was added. The code is no part of it.
    """
    splits = {split: read_meta(BINARIZED / split) for split in ("train", "valid")}
    settings = params.train.model_dump(exclude_none=True, exclude=params.train.without_effect)
    if params.train.init_from is not None:
        settings["init_from"] = sha256_of(PRETRAINED / params.train.init_from / WEIGHTS)
    tracked = {
        "format": FORMAT,
        "model": params.model.model_dump(exclude_none=True),
        "train": settings,
        "vocabulary": splits["train"].vocabulary_hash,
        "data": {split: meta.files for split, meta in splits.items()},
    }
    return sha256(json.dumps(tracked, sort_keys=True).encode()).hexdigest()


@contextmanager
def recording(params: Params, fingerprint: str, state: Path, rank: Rank, parameters: int, report: Path) -> Iterator["Recorder"]:
    """Yield the recorder of a training, while threads send its record to MLflow, and alarms. The end of the block ends the run.

    `state` is the training's state directory; `parameters` is the number of the model's parameters; `report` as of `watching`.
    """
    record = begun(state, fingerprint, params.download.task)
    describe_training(record, params)
    device = torch.cuda.get_device_name(rank.device) if rank.device.type == "cuda" else cpu_name()
    record.tags |= {**lineage(), "device": device, "ranks": str(rank.world_size)}
    record.status, record.end_ms = "RUNNING", None
    record.write()
    train, valid = (read_meta(BINARIZED / split) for split in ("train", "valid"))
    settings = params.train
    further = [COMET] if settings.comet else []
    recorder = Recorder(record.folder, settings.updates, params.download.task, min(settings.bleu_sentences, valid.pairs), further)
    epochs = settings.updates * settings.tokens_per_update / train.target_tokens
    echo(
        f"training {parameters:,} parameters on {rank.world_size} x {rank.device.type}: {settings.updates:,} updates of up to "
        f"{settings.tokens_per_update:,} target tokens, about {epochs:,.1f} epochs",
        sys.stderr,
    )
    try:
        with background_sender(record, tracking_uri(params.machine)):
            try:
                with machine_errors("train", memory_remedy("train")), watching(recorder.vitals, params.machine, record, state, report):
                    yield recorder
            except BaseException as error:
                with suppress(OSError):  # On a full disk the run ends without a record of it.
                    stopped = isinstance(error, Interrupted)
                    record.tags[EXIT_CODE] = str(ExitCode.INTERRUPTED if stopped else getattr(error, "exit_code", BUG))
                    record.end("KILLED" if stopped else "FAILED")
                raise
            record.tags[EXIT_CODE] = str(ExitCode.DONE)  # It may have been stopped before.
            record.attach_files(TABLES, folder="training")
            record.end()
    finally:
        recorder.progress.close()


def begun(state: Path, fingerprint: str, task: Task) -> RunRecord:
    """Return the record of the training with this state directory, which keeps its id, or a new one if it is not here."""
    file = state / RUN
    if not file.exists():
        write_text(file, uuid4().hex)
    identity = file.read_text(encoding="utf-8")
    return read_record(identity) or RunRecord(id=identity, tags={FINGERPRINT: fingerprint}, score=task.key)


class Recorder(Observer):
    """An observer of the trainer (transformer_core/training/trainer.py) on rank 0.

    It writes CSV files to `directory`, the folder of the training's record. `sentences` of valid are translated for its score; `further`
    are names of further scores of a validation.
    """

    def __init__(self, directory: Path, updates: int, task: Task, sentences: int, further: Sequence[str] = ()) -> None:
        self._task, self._sentences = task, sentences
        columns = {
            UPDATES: [field.name for field in fields(UpdateRecord)],
            VALIDATION: ["update", *MEASURES, "source_gain", VALIDATION_SCORE, *further, "seconds"],
            SKIPPED: ["update", "line"],
        }
        self._tables = [_Table(directory / path.name, names) for path, names in columns.items()]
        self._updates, self._validation, self._skipped = self._tables
        self.progress, self._of, self.vitals = Progress(), updates, Vitals()
        self._first: UpdateRecord | None = None  # Of this process: a resumed training may be slower or faster than it was before.
        self._latest: UpdateRecord | None = None
        self._warned = False  # That the model does not read its source.

    def begin(self) -> None:
        """Create all tables, without rows. A resumed training calls `restore` instead."""
        for table in self._tables:
            table.begin()

    def on_progress(self, update: int) -> None:
        self.vitals.moved = time.monotonic()
        if update != self._of:  # The last update is shown with its own figures.
            self.progress.show(update, self._of, self._figures(self._latest, update) if self._latest else "")

    def on_update(self, record: UpdateRecord) -> None:
        self._updates.append(asdict(record))
        self._first, self._latest = self._first or record, record
        self.vitals.speeds.append(record.tokens_per_second)
        self.progress.show(record.update, self._of, self._figures(record, record.update))

    def on_skipped(self, update: int, lines: Sequence[int], overflow: bool) -> None:
        for line in lines:
            self._skipped.append({"update": update, "line": line})
        if not overflow:  # Those of fp16 are expected now and then, and counted in the tables.
            self.vitals.skip(update)
            self.progress.write(
                f"update {update:,}: the loss or a gradient is not finite, skipped; {self._skipped.path} names its lines of data/clean"
            )

    def on_validation(self, update: int, seconds: float, scores: dict[str, float]) -> None:
        self.vitals.moved = time.monotonic()
        self._validation.append({"update": update, **scores, VALIDATION_SCORE: scores[self._task.key], "seconds": seconds})
        score = f"{self._task.score} {scores[self._task.key]:.1f} (greedy, {self._sentences:,} sentences)"
        self.progress.write(f"update {update:,}: valid PPL {scores['perplexity']:.2f}, {score}")
        if not self._warned and (warning := unread_source({"update": update, **scores}, self._of)):
            self.progress.write(warning)
            self._warned = True

    def state(self) -> dict[str, Any]:
        return {table.path.name: table.saved_size() for table in self._tables}

    def restore(self, state: dict[str, Any]) -> None:
        for table in self._tables:
            table.cut(state[table.path.name])

    def _figures(self, record: UpdateRecord, update: int) -> str:
        """Return the figures of a record in words, with the time that is left after a later update, at this process's mean speed."""
        pace = record.seconds / record.update
        if self._first and self._first.update < record.update:
            pace = (record.seconds - self._first.seconds) / (record.update - self._first.update)
        minutes, seconds = divmod(round(pace * (self._of - update)), 60)
        return (
            f"{record.tokens_per_second:,.0f} tok/s, loss {record.loss:.3f}, PPL {record.perplexity:.2f}, lr {record.learning_rate:.2e}, "
            f"{minutes}:{seconds:02d} left"
        )


class _Table:
    """A CSV file that grows by single rows, and can be cut back to its size in a saved state."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self._columns = path, columns

    def begin(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(",".join(self._columns) + "\n", encoding="utf-8")

    def append(self, values: Mapping[str, float]) -> None:
        with self.path.open("a", encoding="utf-8", newline="") as file:
            row = (values[column] for column in self._columns)
            csv.writer(file, lineterminator="\n").writerow(value if isinstance(value, int) else float(f"{value:.6g}") for value in row)

    def saved_size(self) -> int:
        """Return the size in bytes once all rows are on the disk: a power failure must not leave less than a state counts on."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size

    def cut(self, size_bytes: int) -> None:
        """Cut the table back to a size. If rows are missing, as after a copy of the state alone, it begins anew."""
        if not self.path.exists() or self.path.stat().st_size < size_bytes:
            self.begin()
            return
        with self.path.open("r+b") as file:
            self._columns = file.readline().decode().rstrip("\n").split(",")  # Of an older version the table has fewer.
            file.truncate(size_bytes)
