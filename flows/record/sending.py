"""The sender of records to MLflow: a thread of a running stage, the next stage, or `python -m flows.tracking sync`.

What was sent is asked of MLflow itself. A run is found by its tag `record`, the record's id; of a table those rows are logged whose step
MLflow does not have, and of artifacts those whose hash its tag `artifacts` does not name. So a server that was away, another server, a
deleted run and a sender that was killed are one case, and no point is there twice.
"""

import fcntl
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flows.process.runner import echo, in_background
from flows.record.alarms import LINK, link_of
from flows.record.run import ARTIFACTS, NAME, RUN_FILE, RunRecord, Table, read_record, records
from flows.record.server import PARENT_TAG, RECORD, connect, database, experiment_id, reaching, run_link, search
from transformer_core.errors import first_line, for_terminal, without_logins
from transformer_core.files import sha256_of, write_text

if TYPE_CHECKING:
    from mlflow.entities import Run

INTERVAL_SECONDS = 3.0
LONGEST_INTERVAL_SECONDS = 60.0
CLOSING_SECONDS = 8.0
METRICS_A_CALL = 1000
# Tag of a run: the artifacts that it has, with the beginnings of their SHA-256.
_ARTIFACTS_TAG = "artifacts"
_DIGITS = 12
# File in a record's folder with the server that has all of it.
_SENT = "sent"


class Sender:
    """Brings MLflow up to date with records. It remembers which rows a run has, so that a training's tables are compared once.

    Raises `MlflowException` in the constructor if the server does not answer.
    """

    def __init__(self, uri: str) -> None:
        self.client = connect(uri)
        self._uri = uri
        self._steps: dict[tuple[str, Path], set[int]] = {}

    def send(self, record: RunRecord) -> "Run":
        """Log what MLflow lacks of a record, and return its run as it was before. Another process that sends is waited for."""
        with (records() / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            written = sha256_of(record.folder / RUN_FILE)
            run = self._run(record.id, record.tags.get(NAME, record.id), record.start_ms)
            if (link := run_link(self._uri, run)) != link_of(record.id):
                write_text(record.folder / LINK, link)
            self._log_values(record, run)
            for table in record.tables():
                self._log_rows(record, table, run.info.run_id)
            self._log_artifacts(record, run)
            if record.status == "RUNNING" != run.info.status:
                self.client.update_run(run.info.run_id, status="RUNNING")
            elif record.status != "RUNNING" and (run.info.status, run.info.end_time) != (record.status, record.end_ms):
                self.client.set_terminated(run.info.run_id, record.status, record.end_ms)
            if record.status != "RUNNING":
                write_text(record.folder / _SENT, _mark(self._uri, written))
        return run

    def _run(self, identity: str, name: str, start_ms: int | None = None) -> "Run":
        """Return the run of a record, created if there is none; that of a parent that is not sent yet is filled later."""
        if found := search(self.client, f"tags.{RECORD} = '{identity}'"):
            return found[-1]
        return self.client.create_run(experiment_id(self.client), start_ms, {RECORD: identity}, name)

    def _log_values(self, record: RunRecord, run: "Run") -> None:
        """Log tags, parameters and scores. MLflow never changes a parameter: one that has another value becomes a tag of its name."""
        from mlflow.entities import Metric, Param, RunTag

        data = run.data
        now, tags, time_ms = {**data.params, **data.tags}, dict(record.tags), record.end_ms or record.start_ms
        tags |= {name: value for name, value in record.parameters.items() if name in data.params and value != now[name]}
        if record.parent:
            tags[PARENT_TAG] = self._run(record.parent, record.parent).info.run_id
        self.client.log_batch(
            run.info.run_id,
            [Metric(name, one.value, time_ms, one.step) for name, one in record.metrics.items() if one.value != data.metrics.get(name)],
            [Param(name, value) for name, value in record.parameters.items() if name not in data.params],
            [RunTag(name, value) for name, value in tags.items() if value != data.tags.get(name)],
        )

    def _log_rows(self, record: RunRecord, table: Table, run_id: str) -> None:
        """Log rows, whole ones in each call, so that one metric of them says which are there."""
        from mlflow.entities import Metric

        known = self._steps.get((run_id, table.path))
        if known is None:
            history = self.client.get_metric_history(run_id, table.prefix + table.in_every_row)
            known = self._steps[run_id, table.path] = {point.step for point in history}
        rows = list(record.rows(table, known))
        together = METRICS_A_CALL // max([1, *(len(values) for _, _, values in rows)])
        for first in range(0, len(rows), together):
            batch = rows[first : first + together]
            metrics = [Metric(name, value, time_ms, step) for step, time_ms, values in batch for name, value in values.items()]
            self.client.log_batch(run_id, metrics)
            known.update(step for step, _, _ in batch)

    def _log_artifacts(self, record: RunRecord, run: "Run") -> None:
        there: dict[str, str] = {}
        with suppress(ValueError):  # Cut off, of hundreds of artifacts: all are sent again.
            there = json.loads(run.data.tags.get(_ARTIFACTS_TAG, "{}"))
        wanted = {name: digest[:_DIGITS] for name, digest in record.artifacts.items()}
        for name in (name for name in wanted if there.get(name) != wanted[name]):
            file = record.folder / ARTIFACTS / name
            if file.exists():  # Else it was removed by hand.
                self.client.log_artifact(run.info.run_id, str(file), name.rpartition("/")[0] or None)
        if wanted != there:
            self.client.set_tag(run.info.run_id, _ARTIFACTS_TAG, json.dumps(wanted))


def sync(uri: str, again: bool = False) -> None:
    """Send all records that have changed since they were sent to this server, or, `again`, all, compared with MLflow.

    Raises `UserError`: 69 if MLflow is unavailable; else, once all others were sent, the first error of a record: 78, refused; 65, damaged.
    """
    # Parents first, so that they are made with their times: ids of trainings have no dash.
    chosen = sorted(_identities() if again else unsent(uri), key=lambda identity: ("-" in identity, identity))
    errors: list[Exception] = []
    with reaching(uri):
        sender = Sender(uri) if chosen else None
        for identity in chosen:
            try:
                if sender and (record := read_record(identity)):
                    sender.send(record)
            except Exception as error:  # Of this record: too large for a proxy, refused, or damaged.
                connect(uri)  # Raises an error if the server itself is away, which holds for the others as well.
                errors.append(error)
        if errors:
            raise errors[0]


def send_others(uri: str) -> None:
    """Send all records; an error is printed. A fault of another run, such as its evaluation's, keeps no model from the registry."""
    try:
        sync(uri)
    except Exception as error:
        echo(for_terminal(f"A record was not sent: {first_line(error)}"), sys.stderr)


def unsent(uri: str) -> list[str]:
    """Return the ids of the records that have not been sent to this server whole; a run that is not over is one."""
    return [identity for identity in _identities() if not all_sent(identity, uri)]


def all_sent(identity: str, uri: str) -> bool:
    """Return whether a run is over and all of its record was sent to this server; MLflow is not asked."""
    folder = records() / identity
    try:
        return (folder / _SENT).read_text(encoding="utf-8") == _mark(uri, sha256_of(folder / RUN_FILE))
    except (OSError, ValueError):
        return False


@contextmanager
def background_sender(record: RunRecord, uri: str) -> Iterator[None]:
    """Send a record, and once the unsent others, from a thread while the block runs.

    The block neither waits for MLflow nor gets its errors. Its end waits at most `CLOSING_SECONDS` for last rows, and warns of those left.
    """
    trouble = "not sent in time"

    def send(stop: threading.Event) -> None:
        nonlocal trouble
        sender: Sender | None = None
        pause, last_time = INTERVAL_SECONDS, False
        while not last_time:
            last_time = stop.wait(pause)
            try:
                if sender is None:
                    sender = Sender(uri)
                    sync(uri)  # This record, and what other stages have left.
                if latest := read_record(record.id):
                    sender.send(latest)
                pause = INTERVAL_SECONDS
            except Exception as error:  # The stage continues, and the record is kept.
                trouble = first_line(error)
                pause = min(2 * pause, LONGEST_INTERVAL_SECONDS)

    try:
        with in_background(send, "mlflow-sender", CLOSING_SECONDS):
            yield
    finally:
        if not all_sent(record.id, uri):
            remedy = "The record is kept and sent by the next stage, or by: python -m flows.tracking sync"
            echo(for_terminal(f"MLflow at {uri}: {trouble}. {remedy}"), sys.stderr)


def _identities() -> list[str]:
    return [path.parent.name for path in records().glob(f"*/{RUN_FILE}")]


def _mark(uri: str, written: str) -> str:
    """Return what is noted of a record of this content that a server has: its address without a login, or its database."""
    return f"{database(uri) or without_logins(uri)} {written}"
