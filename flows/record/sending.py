"""The sender of journals to MLflow: a thread of a running stage, the next stage, or `python -m flows.tracking sync`.

A training is a run with the tag `fingerprint`; its evaluations are child runs. The tag `journal` of a run names its journal, so a journal
that is sent again finds the same run. It adds no point, because step and time are equal. The run keeps its name and description, to which
stage publish adds the score.
"""

import fcntl
import json
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.process.runner import echo, in_background
from flows.record.journal import BEFORE_RESULT, DESCRIPTION, FROM_TABLES, JOURNALS, NAME, Event, position_file, read_events
from flows.record.server import PARENT_TAG, REFUSED, WAITS_FOR, connect, experiment_id, find_training, reaching, search
from flows.record.store import SQLITE, database
from transformer_core.errors import UserError, first_line, for_terminal, without_logins
from transformer_core.files import read_json, repository, write_json

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Run

INTERVAL_SECONDS = 3.0
LONGEST_INTERVAL_SECONDS = 60.0
CLOSING_SECONDS = 8.0
METRICS_A_CALL = 1000
# The file of the lock of the process that sends.
SENDER_LOCK = JOURNALS / "lock"

logger = logging.getLogger(__name__)


@contextmanager
def background_sender(journal: Path, uri: str) -> Iterator[None]:
    """Send a journal, and the unsent rest of others, from a thread while the block runs.

    The block never waits for MLflow, and no error of MLflow reaches it. Its end waits at most `CLOSING_SECONDS` for the last lines, and
    prints a warning if some are left.
    """
    trouble = "not sent in time"

    def send(stop: threading.Event) -> None:
        nonlocal trouble
        pause = INTERVAL_SECONDS
        while True:
            last_time = stop.wait(pause)
            try:
                send_all(uri)
                pause = INTERVAL_SECONDS
            except Exception as error:  # The stage continues, and the journal keeps the record.
                trouble = first_line(error)
                pause = min(2 * pause, LONGEST_INTERVAL_SECONDS)
            if last_time:
                return

    try:
        with in_background(send, "mlflow-sender", CLOSING_SECONDS):
            yield
    finally:
        if not all_sent(journal, uri):
            remedy = "The record is kept and sent by the next stage, or by: python -m flows.tracking sync"
            echo(for_terminal(f"MLflow at {uri}: {trouble}. {remedy}"), sys.stderr)


def sync(uri: str, lost_too: bool = False) -> None:
    """Send all journals, see `send_all`. Raises `UserError`: 69 if MLflow is unavailable, 78 if it refuses a value."""
    with reaching(uri):
        send_all(uri, lost_too)


def send_all(uri: str, lost_too: bool = False) -> None:
    """Send the unsent rest of all journals, those of parents before those of their children.

    Only one process sends at a time; others wait for it.

    Args:
        lost_too: ask MLflow for the run of every journal, and send those again that it no longer has. Otherwise it is asked only where
            something is unsent, so a stage with nothing to send does not wait for it.

    Raises:
        Exception: an error of MLflow or the network, if the server is unavailable; the rest stays unsent.
    """
    chosen = [path for path in sorted(JOURNALS.glob("*.jsonl")) if lost_too or not all_sent(path, uri)]
    if not chosen:
        return
    with SENDER_LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        client = connect(uri)
        for path in sorted(chosen, key=lambda path: (_header(path) or {"parent": ""})["parent"] != ""):
            send(path, client, uri)
            if lost_too:
                _join_parent(path, client, uri)


def all_sent(journal: Path, uri: str) -> bool:
    """Return whether all of a journal was sent to MLflow at `uri`, by its position file; MLflow is not asked."""
    header = _header(journal)
    if header is None:
        return True
    return _read_position(journal, header, uri).bytes == journal.stat().st_size


def send(journal: Path, client: "MlflowClient", uri: str) -> None:
    """Send the rest of one journal."""
    header = _header(journal)
    if header is None:
        return
    position = _read_position(journal, header, uri)
    run = _run_with_id(client, position.run_id)
    if run is None:  # New, or MLflow no longer has it: the whole journal is sent.
        run = find_or_create_run(client, header)
        position = replace(position, run_id=run.info.run_id, bytes=0)
    events = read_events(journal, position.bytes)
    if BEFORE_RESULT in run.data.tags.get(DESCRIPTION, ""):
        events = map(_without_title, events)
    for group in _groups(events):
        _send_group(client, position.run_id, group)
        position = replace(position, bytes=group[-1]["end"])
        write_json(position_file(journal), asdict(position))


def _join_parent(journal: Path, client: "MlflowClient", uri: str) -> None:
    """Give a child run whose parent was deleted the run that has taken its place."""
    header = _header(journal)
    if header and header["parent"]:
        child = _read_position(journal, header, uri).run_id
        if _run_with_id(client, client.get_run(child).data.tags.get(PARENT_TAG, "")) is None:
            client.set_tag(child, PARENT_TAG, _parent_of(client, header).info.run_id)


def find_or_create_run(client: "MlflowClient", header: Event) -> "Run":
    """Return the MLflow run of a journal, created if there is none."""
    name = header["run"]
    if found := search(client, f"tags.journal = '{header['id']}'"):
        return found[0]
    tags = {"journal": header["id"]}
    if header["parent"]:
        tags[PARENT_TAG] = _parent_of(client, header).info.run_id
    else:
        identity = header["id"].removesuffix(FROM_TABLES)
        for run in search(client, f"tags.fingerprint = '{name}'"):
            if "journal" not in run.data.tags and run.data.tags.get(WAITS_FOR, identity) == identity:
                client.set_tag(run.info.run_id, "journal", header["id"])
                return run
        tags["fingerprint"] = name
    return client.create_run(experiment_id(client), start_time=header["timestamp_ms"], tags=tags, run_name=name)


def _parent_of(client: "MlflowClient", header: Event) -> "Run":
    """Return the run of a journal's parent. If its journal is elsewhere, an empty run takes its place, which that journal fills later."""
    parent, parent_id = header["parent"], header.get("parent_id", "")
    waiting = {"fingerprint": parent, **({WAITS_FOR: parent_id} if parent_id else {})}
    return find_training(client, parent, parent_id) or client.create_run(experiment_id(client), tags=waiting, run_name=parent)


@dataclass(frozen=True)
class Position:
    """Number of bytes of a journal that were sent, their destination, the journal's id, and the MLflow run."""

    uri: str
    journal: str
    run_id: str
    bytes: int


def _read_position(journal: Path, header: Event, uri: str) -> Position:
    """Return the position in a journal for this address: the start, if the file is missing, damaged or of another journal or address."""
    destination = _destination(uri)
    with suppress(OSError, UserError, TypeError):
        position = Position(**read_json(position_file(journal)))
        if (position.journal, _destination(position.uri)) == (header["id"], destination):
            return replace(position, uri=destination)
    return Position(destination, header["id"], "", 0)


def _destination(uri: str) -> str:
    """Return the address without a login; relative for a database in the repository, which may be moved."""
    file, root = database(uri), repository().resolve()
    return without_logins(uri) if file is None or not file.is_relative_to(root) else f"{SQLITE}{file.relative_to(root)}"


def _header(journal: Path) -> Event | None:
    return next(read_events(journal), None)


def _without_title(event: Event) -> Event:
    """Return an event without the name and the description of its run, for a run whose result is in both."""
    if event["type"] != "tags":
        return event
    return {**event, "values": {name: value for name, value in event["values"].items() if name not in (NAME, DESCRIPTION)}}


def _groups(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield groups of events, for one call each: metrics of up to `METRICS_A_CALL` numbers together, every other event alone."""
    group: list[Event] = []
    size = 0
    for event in events:
        numbers = len(event["values"]) if event["type"] == "metrics" else METRICS_A_CALL
        if group and size + numbers > METRICS_A_CALL:
            yield group
            group, size = [], 0
        group.append(event)
        size += numbers
    if group:
        yield group


def _send_group(client: "MlflowClient", run_id: str, group: list[Event]) -> None:
    """Send a group of events. An event that MLflow refuses is skipped with a warning, so that it does not block those after it."""
    from mlflow.exceptions import MlflowException

    try:
        _send_events(client, run_id, group)
    except MlflowException as error:
        if error.error_code not in REFUSED:
            raise
        if len(group) == 1:
            logger.warning("MLflow refused an event of type %s: %s", group[0]["type"], first_line(error))
            return
        for event in group:
            _send_group(client, run_id, [event])


def _send_events(client: "MlflowClient", run_id: str, group: list[Event]) -> None:
    from mlflow.entities import Metric, Param, RunTag

    event = group[0]
    match event["type"]:
        case "metrics":
            client.log_batch(run_id, metrics=[Metric(n, v, e["timestamp_ms"], e["step"]) for e in group for n, v in e["values"].items()])
        case "parameters":
            # MLflow never changes a parameter: one that has another value becomes a tag of its name.
            run = client.get_run(run_id).data
            there = {**run.params, **run.tags}
            changed = [RunTag(n, v) for n, v in event["values"].items() if n in run.params and v != there[n]]
            client.log_batch(run_id, params=[Param(n, v) for n, v in event["values"].items() if n not in run.params], tags=changed)
        case "tags":
            client.log_batch(run_id, tags=[RunTag(name, value) for name, value in event["values"].items()])
        case "inputs":
            client.log_inputs(run_id, [_dataset_input(value) for value in event["values"]])
        case "artifact" if (file := repository() / event["path"]).exists():
            client.log_artifact(run_id, str(file), event["folder"] or None)
        case "status" if event["status"] == "RUNNING":
            client.update_run(run_id, status="RUNNING")
        case "status":
            client.set_terminated(run_id, event["status"], event["timestamp_ms"])


def _dataset_input(value: dict[str, Any]) -> "DatasetInput":
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT
    from mlflow.utils.validation import MAX_DATASET_SOURCE_SIZE

    source, profile = json.dumps({"origin": value["source"]}), json.dumps({"num_rows": value["pairs"]})
    if len(source) > MAX_DATASET_SOURCE_SIZE:  # A corpus of hundreds of files; data/raw/manifest.json has them all.
        parts = len(json.loads(value["source"]))
        source = json.dumps({"origin": {"parts": parts, "sha256": sha256(value["source"].encode()).hexdigest()}})
    dataset = Dataset(value["name"], value["digest"], "corpus", source, profile=profile)
    return DatasetInput(dataset, [InputTag(MLFLOW_DATASET_CONTEXT, value["context"])])


def _run_with_id(client: "MlflowClient", run_id: str) -> "Run | None":
    from mlflow.exceptions import MlflowException

    if not run_id:
        return None
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    # A run that was deleted on its page is still found, but refuses events.
    return run if run.info.lifecycle_stage == "active" else None
