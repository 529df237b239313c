import json
import resource
import shutil
import time
from pathlib import Path

import pytest

from flows.record.journal import JOURNALS, Event, Journal, position_file, read_events, take_journals
from transformer_core.errors import UserError

pytestmark = pytest.mark.usefixtures("empty_directory")


def events(kind: str, run: str = "run") -> list[Event]:
    return [event for event in read_events(JOURNALS / f"{run}.jsonl") if event["type"] == kind]


def test_every_event_is_a_line_with_its_time_on_disk_when_the_call_returns() -> None:
    before = time.time_ns() // 1_000_000
    journal = Journal("run")
    journal.parameters({"train": {"warmup": 400}, "a": {"b": {"c": "tiny"}}, "d": None, "e": True})
    journal.tags({"corpus": "Größe"})
    journal.metrics(100, {"loss": 3.5, "perplexity": 33.1}, context="train")
    report = Path("results/report.html")
    report.parent.mkdir()
    report.write_text("<h1>BLEU</h1>", encoding="utf-8")
    journal.artifact(report, folder="reports")
    report.write_text("of the next run", encoding="utf-8")
    journal.end()
    lines = [json.loads(line) for line in journal.path.read_bytes().split(b"\n")[:-1]]
    assert [line["type"] for line in lines] == ["run", "status", "parameters", "tags", "metrics", "artifact", "status"]
    assert lines[2]["values"] == {"train.warmup": "400", "a.b.c": "tiny", "d": "None", "e": "True"}
    assert lines[3]["values"] == {"corpus": "Größe"}
    assert (lines[4]["step"], lines[4]["values"]) == (100, {"train/loss": 3.5, "train/perplexity": 33.1})
    assert Path(lines[5]["path"]).name == "report.html"
    assert Path(lines[5]["path"]).read_text(encoding="utf-8") == "<h1>BLEU</h1>"
    assert lines[5]["folder"] == "reports"
    assert (lines[1]["status"], lines[6]["status"]) == ("RUNNING", "FINISHED")
    assert all(before <= line["timestamp_ms"] <= time.time_ns() // 1_000_000 for line in lines)


def test_a_line_that_a_full_disk_has_cut_off_leaves_the_journal_readable() -> None:
    journal = Journal("run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 10, hard))  # As a disk with room for 10 bytes more.
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.metrics(1, {"loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.end("FAILED")
    assert [event["status"] for event in events("status")] == ["RUNNING", "FAILED"]


def test_a_resumed_run_records_each_dataset_once() -> None:
    train, valid = ({"name": f"tiny {split}", "digest": "0123", "pairs": 60} for split in ("train", "valid"))
    Journal("run").inputs([train])
    Journal("run").inputs([train, valid])
    assert [[value["name"] for value in event["values"]] for event in events("inputs")] == [["tiny train"], ["tiny valid"]]


def test_a_training_that_is_resumed_on_another_machine_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal("run")
    first.metrics(1, {"loss": 1.0})
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    again = Journal("run", resumed=True, identity=first.identity)
    assert next(read_events(again.path))["id"] == first.identity


@pytest.mark.parametrize("points", [{"loss": 1.0}, {}])
def test_the_journal_of_an_earlier_training_here_is_put_aside_for_one_that_goes_on_here(points: dict[str, float]) -> None:
    earlier = Journal("run")
    earlier.metrics(1, points)
    later = Journal("run", resumed=True, identity="f1d0")
    later.metrics(1, {"loss": 0.9})
    assert [event["values"] for event in events("metrics")] == [{"loss": 0.9}]
    assert next(read_events(later.path))["id"] == "f1d0"
    assert len(list(JOURNALS.glob("run.*.jsonl"))) == 1


def test_a_resumed_training_repeats_no_point() -> None:
    """Stopped after update 3, saved at update 2: the third comes twice from the trainer and once into the journal."""
    first = Journal("run")
    for step in (1, 2, 3):
        first.metrics(step, {"loss": 1.0 / step})
    first.end("KILLED")
    resumed = Journal("run", resumed=True)
    for step in (3, 4):
        resumed.metrics(step, {"loss": 1.0 / step})
    resumed.metrics(4, {"nll": 2.0}, context="valid")
    points = [(event["step"], *event["values"]) for event in events("metrics")]
    assert points == [(1, "loss"), (2, "loss"), (3, "loss"), (4, "loss"), (4, "valid/nll")]
    assert len(events("run")) == 1


def test_a_parameter_or_tag_is_written_again_if_its_value_has_changed() -> None:
    for value in ("1", "2", "1"):
        journal = Journal("run")
        for _ in range(2):
            journal.parameters({"train": {"updates": value, "seed": 1}})
            journal.tags({"devices": value})
    assert [event["values"] for event in events("parameters")] == [
        {"train.updates": "1", "train.seed": "1"}, {"train.updates": "2"}, {"train.updates": "1"}
    ]  # fmt: skip
    assert [event["values"]["devices"] for event in events("tags")] == ["1", "2", "1"]


def test_a_finished_training_forced_again_is_a_new_run_and_the_old_one_is_kept() -> None:
    old = Journal("run")
    old.metrics(1, {"loss": 1.0})
    old.end()
    kept = old.path.read_bytes()
    position_file(old.path).write_text("sent")

    new = Journal("run")
    new.metrics(1, {"loss": 0.9})
    assert events("metrics")[0]["values"] == {"loss": 0.9}
    assert not position_file(new.path).exists()
    (aside,) = set(JOURNALS.glob("*.jsonl")) - {new.path}
    assert aside.read_bytes() == kept
    assert position_file(aside).read_text() == "sent"
    assert next(read_events(aside))["id"] != next(read_events(new.path))["id"]


def test_a_journal_of_another_folder_replaces_the_one_that_it_continues_alone(tmp_path: Path) -> None:
    """Theirs continues ours, ours continues theirs, and two of which neither continues the other: ours may be of a running training."""
    for name in ("theirs", "ours", "other"):
        Journal(name).metrics(1, {"loss": 1.0})
    begun = {path.stem: path.read_bytes() for path in JOURNALS.glob("*.jsonl")}
    for name in begun:
        Journal(name, resumed=True).metrics(2, {"loss": 0.5})
    theirs = {path.stem: path.read_bytes() for path in JOURNALS.glob("*.jsonl")} | {"ours": begun["ours"]}
    shutil.move(JOURNALS, tmp_path / "clone")
    JOURNALS.mkdir()
    ours = {"theirs": begun["theirs"], "ours": (tmp_path / "clone/ours.jsonl").read_bytes(), "other": begun["other"][:-1] + b" \n"}
    for name in begun:
        (JOURNALS / f"{name}.jsonl").write_bytes(ours[name])
        (tmp_path / f"clone/{name}.jsonl").write_bytes(theirs[name])
    take_journals(tmp_path / "clone")
    wanted = {"theirs": theirs["theirs"], "ours": ours["ours"], "other": ours["other"]}
    assert {name: (JOURNALS / f"{name}.jsonl").read_bytes() for name in wanted} == wanted
    assert [path.read_bytes() for path in JOURNALS.glob("*.*.jsonl")] == [theirs["other"]]


def test_a_resumed_training_with_more_validations_records_those_between_the_ones_that_are_there() -> None:
    first = Journal("run")
    for step in (1000, 2000):
        first.metrics(step, {"valid/nll": 1.0})
    again = Journal("run", resumed=True)
    for step in (1750, 2000):
        again.metrics(step, {"valid/nll": 1.0})
    assert [event["step"] for event in events("metrics")] == [1000, 2000, 1750]


def test_a_finished_evaluation_of_the_same_name_is_the_same_run() -> None:
    for _ in range(2):
        journal = Journal("evaluation", parent="run")
        journal.metrics(1200, {"bleu": 86.4})
        journal.end()
    assert len(list(JOURNALS.iterdir())) == 1
    assert len(events("metrics", run="evaluation")) == 1


@pytest.mark.parametrize("torn", [b'{"type": "metr', b"", b"\xff"])
def test_an_incomplete_last_line_is_removed_and_no_other(torn: bytes) -> None:
    journal = Journal("run")
    journal.metrics(1, {"loss": 1.0})
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + torn)
    assert list(read_events(journal.path))[-1]["end"] == len(whole)
    Journal("run", resumed=True).metrics(2, {"loss": 0.5})
    assert [event["step"] for event in events("metrics")] == [1, 2]


def test_reading_continues_at_a_position() -> None:
    journal = Journal("run")
    journal.metrics(1, {"loss": 1.0})
    end = list(read_events(journal.path))[-1]["end"]
    journal.metrics(2, {"loss": 0.5})
    assert [event["step"] for event in read_events(journal.path, end)] == [2]
    assert list(read_events(JOURNALS / "other.jsonl")) == []


def test_nan_and_infinity_are_recorded_as_they_are() -> None:
    Journal("run").metrics(1, {"loss": float("nan"), "norm": float("inf")})
    values = events("metrics")[0]["values"]
    assert values["loss"] != values["loss"]
    assert values["norm"] == float("inf")


@pytest.mark.parametrize(
    "damage",
    [
        b"{\n",
        b"\xff\n",
        b"1\n",
        b"{}\n",
        b'{"type": "other", "timestamp_ms": 1}\n',
        b'{"type": "metrics", "step": 1, "timestamp_ms": 1}\n',
        b'{"type": "tags", "values": [], "timestamp_ms": 1}\n',
        b'{"type": "run", "id": "1", "run": "r", "parent": "", "timestamp_ms": 1}\n',
    ],
)
def test_a_damaged_line_is_told_with_its_place(damage: bytes) -> None:
    path = Journal("run").path
    whole = path.read_bytes()
    path.write_bytes(whole + damage + whole.split(b"\n")[1] + b"\n")
    with pytest.raises(UserError, match=f"run.jsonl: no event of a journal at byte {len(whole):,}"):
        Journal("run")


def test_a_journal_begins_with_its_run() -> None:
    path = Journal("run").path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match="no event of a journal at byte 0"):
        Journal("run")
