"""The journal of a run: JSON lines on disk, which flows/record/sending.py sends to MLflow later.

The first line of `.state/journal/RUN.jsonl` identifies the run; each further line is one event:

    {"type": "run", "id": "9f1c...", "run": "RUN", "parent": "", "parent_id": "", "timestamp_ms": 1700000000000}
    {"type": "status", "status": "RUNNING", ...}            MLflow's names: RUNNING, FINISHED, FAILED, KILLED
    {"type": "parameters", "values": {"train.warmup": "400"}, ...}
    {"type": "tags", "values": {"corpus": "tatoeba"}, ...}
    {"type": "metrics", "step": 100, "values": {"train/loss": 3.2}, ...}
    {"type": "inputs", "values": [{"name": "multi30k train en-de", "digest": "1f0c...", "context": "training", ...}], ...}
    {"type": "artifact", "path": ".state/journal/files/8d2c.../report.html", "folder": "", ...}
"""

import json
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from flows.process.paths import STATE
from transformer_core.errors import UserError, writing
from transformer_core.files import new_file, repository, sha256_of

# One folder for all workspaces of the repository, because an experiment's temporary copy is removed at its end.
JOURNALS = repository() / STATE / "journal"

Event = dict[str, Any]
# The fields of an event beside its time, by type.
_FIELDS: Mapping[str, Mapping[str, type]] = {
    "run": {"id": str, "run": str, "parent": str},
    "status": {"status": str},
    "parameters": {"values": dict},
    "tags": {"values": dict},
    "metrics": {"step": int, "values": dict},
    "inputs": {"values": list},
    "artifact": {"path": str, "folder": str},
}

# Tags that MLflow's pages show at the top of a run: its name, its description, its code and commit.
NAME = "mlflow.runName"
DESCRIPTION = "mlflow.note.content"
BEFORE_RESULT = "\n\n"  # In a description: the result that stage publish adds follows.
SOURCE = "mlflow.source.name"
COMMIT = "mlflow.source.git.commit"
# The step of scores of the test set, whose names have no prefix. MLflow 3.17 draws a metric as a bar if all its runs have it at step 0, and
# else as lines, of which one would be a dot; and it always shows the section of metrics without a prefix, which would be empty.
SCORES_STEP = 0

# Suffix of the id of a journal made from a training's tables. The training's own journal, whose id is the part before, is elsewhere.
FROM_TABLES = "/tables"

# Prefix of the names of samples over time.
SAMPLES = "system/"
# The folders of the two sides of the test set among the artifacts of an evaluation.
SOURCES, REFERENCES = "sources", "references"


class Journal:
    """The journal of one run, opened for appending. Each call, from any thread, has written its line when it returns.

    The journal of a resumed training is continued. Points, parameters and tags that it holds are not written again, so no point is
    repeated. A training that is not `resumed` but has FINISHED or has points begins from scratch, perhaps with other code: its journal is
    renamed, and a new one is begun, so that the points of two trainings are not mixed. Runs with a parent and the same name are one run.

    Args:
        run: name of the run, unique in the repository: a training's fingerprint; for a run with a parent, a name made from its content.
        parent: name of the run that this one is a child of, such as a training's fingerprint, or empty.
        resumed: whether the training continues from a saved state.
        identity: id of the run that a resumed training continues, perhaps begun on another machine; None is the one in the journal.
        parent_id: id of the parent's journal, because several trainings may have one fingerprint; empty if it is not known.
        path: another file than the one of the run's name, which may be that of a training in another workspace.
    """

    def __init__(
        self,
        run: str,
        parent: str = "",
        resumed: bool = False,
        identity: str | None = None,
        parent_id: str = "",
        path: Path | None = None,
    ) -> None:
        self.path = path or JOURNALS / f"{run}.jsonl"
        JOURNALS.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(self.path)
        self._lock = threading.Lock()
        events = list(read_events(self.path))
        begun = _status(events) == "FINISHED" or any(event["type"] == "metrics" for event in events)
        of_another = bool(events) and identity not in (None, events[0]["id"])
        if not parent and (of_another if resumed else begun):
            if _status(events) == "RUNNING":  # It was killed and could not record its end.
                self._append(type="status", status="KILLED", timestamp_ms=events[-1]["timestamp_ms"])
            _put_aside(self.path)
            events = []
        self._points: set[tuple[int, str]] = set()
        self._samples: dict[str, int] = {}
        for event in events:
            if event["type"] == "metrics":
                self._note(event["step"], event["values"])
        self._parameters = _values(events, "parameters")
        self._tags = _values(events, "tags")
        self._inputs = [value for event in events if event["type"] == "inputs" for value in event["values"]]
        self.identity: str = events[0]["id"] if events else f"{parent}/{run}" if parent else identity or uuid.uuid4().hex
        if not events:
            self._append(type="run", id=self.identity, run=run, parent=parent, parent_id=parent_id)
        self._append(type="status", status="RUNNING")

    def metrics(self, step: int, values: Mapping[str, float], context: str = "") -> None:
        """Record numbers at a step. A context is prefixed to their names: nll of context valid is "valid/nll"."""
        named = {f"{context}/{name}" if context else name: float(value) for name, value in values.items()}
        new = {name: value for name, value in named.items() if (step, name) not in self._points and step > self._samples.get(name, -1)}
        if new:
            self._note(step, new)
            self._append(type="metrics", step=step, values=new)

    def _note(self, step: int, names: Iterable[str]) -> None:
        """Remember which points the journal has. Of samples over time, which are many and in order, the last step is enough."""
        for name in names:
            if name.startswith(SAMPLES):
                self._samples[name] = step
            else:
                self._points.add((step, name))

    def parameters(self, values: Mapping[str, Any]) -> None:
        """Record settings; nested sections become "section.key". A training that goes on may have other ones."""
        new = {name: value for name, value in flatten(values).items() if self._parameters.get(name) != value}
        if new:
            self._parameters.update(new)
            self._append(type="parameters", values=new)

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags; a later value replaces an earlier one."""
        new = {name: value for name, value in values.items() if self._tags.get(name) != value}
        if new:
            self._tags.update(new)
            self._append(type="tags", values=new)

    def inputs(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Record the data that the run reads, see `lineage.datasets`."""
        new = [value for value in values if value not in self._inputs]
        if new:
            self._inputs += new
            self._append(type="inputs", values=new)

    def next_step(self, name: str) -> int:
        """Return the number of the next of the samples over time of a metric."""
        return self._samples.get(name, -1) + 1

    def artifact(self, path: Path, folder: str = "") -> None:
        """Record a file, which MLflow stores under `folder`. It is copied, because the next run may replace it before it is sent."""
        kept = self.path.parent / "files" / sha256_of(path)[:16] / path.name
        if not kept.exists():
            with new_file(kept) as temporary:
                shutil.copyfile(path, temporary)
        self._append(type="artifact", path=kept.relative_to(repository()).as_posix(), folder=folder)

    def end(self, status: str = "FINISHED") -> None:
        """Record the end: FINISHED, FAILED, or KILLED for a run that was stopped and can be resumed."""
        self._append(type="status", status=status)

    def _append(self, **event: Any) -> None:
        line = json.dumps({"timestamp_ms": time.time_ns() // 1_000_000, **event}, ensure_ascii=False)
        with self._lock, writing(self.path):
            try:
                with self.path.open("ab") as file:
                    file.write(line.encode() + b"\n")
            except OSError:  # A full disk may have taken a part of it, which the next line would continue.
                _cut_torn_line(self.path)
                raise


def take_journals(folder: Path) -> None:
    """Copy the journals in a folder to `JOURNALS`, so that they are sent from here.

    One of two that do not continue each other is put aside: theirs, because the run of the one here may be in progress.
    """
    for journal in list(folder.glob("*.jsonl")):
        kept, events = JOURNALS / journal.name, journal.read_bytes()
        here = kept.read_bytes() if kept.exists() else b""
        if here.startswith(events):
            journal.unlink()
            position_file(journal).unlink(missing_ok=True)
        elif not events.startswith(here):
            _put_aside(journal)
    shutil.copytree(folder, JOURNALS, dirs_exist_ok=True)


def read_events(path: Path, start: int = 0) -> Iterator[Event]:
    """Yield the events of a journal from byte `start` on, complete lines only; none if there is no journal.

    Each event has an additional key "end": the offset of the byte after its line. Raises `UserError` (65): a line is no event, or the first
    line does not identify the run.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        end = start
        for line in file:
            if not line.endswith(b"\n"):
                return
            event = _event(line)
            if event is None or (event["type"] == "run") != (end == 0):
                remedy = "Move the file away: what was not sent from it to MLflow is lost."
                raise UserError(f"{path}: no event of a journal at byte {end:,}", remedy)
            end += len(line)
            yield {**event, "end": end}


def _event(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
        fields = {**_FIELDS[event["type"]], "timestamp_ms": int}
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    return event if all(isinstance(event.get(name), kind) for name, kind in fields.items()) else None


def journal_of(run: str, identity: str) -> Path | None:
    """Return the journal of a run with this id, or the one made from its tables, perhaps put aside for another of its name.

    None if there is none here. An empty id matches any journal of the run.
    """
    for path in (JOURNALS / f"{run}.jsonl", *sorted(JOURNALS.glob(f"{run}.*.jsonl"))):
        header = next(read_events(path), None)
        if header and identity in ("", header["id"].removesuffix(FROM_TABLES)):
            return path
    return None


def journal_beside(run: str, identity: str) -> Path:
    """Return the path of another journal of a run's name, the same each time for a run with this id."""
    return JOURNALS / f"{run}.{sha256(identity.encode()).hexdigest()[:8]}.jsonl"


def has_finished(run: str) -> bool:
    """Return whether the journal of a run ends with the status FINISHED."""
    return _status(list(read_events(JOURNALS / f"{run}.jsonl"))) == "FINISHED"


def _put_aside(journal: Path) -> None:
    """Rename a journal, with its sender's position, for another run of the same name."""
    aside = _aside(journal)
    journal.replace(aside)
    if (position := position_file(journal)).exists():
        position.replace(position_file(aside))


def _aside(journal: Path) -> Path:
    """Return a new name for a journal beside another of its run's name."""
    return journal.with_name(f"{journal.stem}.{uuid.uuid4().hex[:8]}.jsonl")


def position_file(journal: Path) -> Path:
    """Return the file with the position of the sender in a journal (see sending.py)."""
    return journal.with_suffix(".sent")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested sections: {"train": {"warmup": 400}} becomes {"train.warmup": "400"}."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = str(value)
    return flat


def _status(events: list[Event]) -> str:
    return str(next((event["status"] for event in reversed(events) if event["type"] == "status"), "RUNNING"))


def _values(events: list[Event], kind: str) -> dict[str, str]:
    return {name: value for event in events if event["type"] == kind for name, value in event["values"].items()}


def _cut_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a crash leaves."""
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
