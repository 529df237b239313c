"""The record of a training: tables of whole lines, cut back to a saved state."""

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flows.record.recorder import Recorder, begun
from transformer_core.tasks import TRANSLATION
from transformer_core.training.records import UpdateRecord

pytestmark = pytest.mark.usefixtures("empty_directory")
SCORES = {"nll": 2.0, "perplexity": 7.389, "accuracy": 0.5, "source_gain": 1.25, "bleu": 31.4}


def record(update: int, seconds: float | None = None) -> UpdateRecord:
    return UpdateRecord(update, 1, 2.5, 9.0, 1e-3, 0.5, 1000.0, 0.1, 0.01, 0.3, 0, update if seconds is None else seconds)


def recorder(state: dict[str, Any] | None = None) -> Recorder:
    """Of a training that begins, or that goes on from a state."""
    made = Recorder(Path(), updates=100, task=TRANSLATION, sentences=50)
    made.begin() if state is None else made.restore(state)
    return made


def updates() -> list[int]:
    return pd.read_csv("updates.csv")["update"].tolist()


def test_a_resumed_recorder_cuts_back_its_tables_to_the_saved_state() -> None:
    first = recorder()
    first.on_update(record(20))
    first.on_skipped(3, [17, 4], overflow=False)
    state = first.state()
    first.on_update(record(40))  # after the save: the resumed training will come here again
    first.on_skipped(5, [1], overflow=False)
    second = recorder(state)
    second.on_update(record(40))
    second.on_update(record(60))
    second.on_skipped(6, [2], overflow=False)
    assert updates() == [20, 40, 60]
    assert Path("skipped.csv").read_text(encoding="utf-8") == "update,line\n3,17\n3,4\n6,2\n"


def test_an_overflow_of_fp16_is_in_the_table_and_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    begun = recorder()
    for update, overflow in ((3, True), (5, False)):
        begun.on_skipped(update, [1], overflow)
    assert capsys.readouterr().err.startswith("update 5: the loss or a gradient is not finite")
    assert pd.read_csv("skipped.csv")["update"].tolist() == [3, 5]


def test_the_time_that_is_left_is_at_the_speed_of_this_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("flows.process.progress.SECONDS_BETWEEN_LINES", 0)
    shown = recorder()
    shown.on_progress(19)
    shown.on_update(record(20))  # A second for each.
    shown.on_progress(30)
    resumed = recorder(shown.state())
    resumed.on_update(record(40))
    resumed.on_update(record(50, 240))  # 20 seconds for each.
    lines = capsys.readouterr().err.splitlines()
    ends = {19: "update 19 of 100", 20: "1:20 left", 30: "1:10 left", 40: "1:00 left", 50: "16:40 left"}
    found = [(line.partition(":")[0], line.rpartition(", ")[2]) for line in lines]
    assert found == [(f"update {update} of 100", end) for update, end in ends.items()]


def test_a_training_from_the_start_keeps_nothing_of_one_that_never_saved() -> None:
    for _ in range(2):
        recorder().on_update(record(20))
    assert updates() == [20]


def test_validation_scores_are_in_a_table_with_the_columns_of_the_version_that_began_it() -> None:
    recorder().on_validation(50, 12.0, SCORES)
    expected = "update,nll,perplexity,accuracy,source_gain,score,seconds\n50,2.0,7.389,0.5,1.25,31.4,12.0\n"
    assert Path("validation.csv").read_text(encoding="utf-8") == expected
    older = "update,nll,score,seconds\n50,2.0,31.4,12.0\n"
    Path("validation.csv").write_text(older)
    recorder({"updates.csv": 0, "validation.csv": len(older), "skipped.csv": 0}).on_validation(100, 24.0, SCORES)
    assert Path("validation.csv").read_text(encoding="utf-8") == f"{older}100,2.0,31.4,24.0\n"


def test_the_log_says_once_that_a_half_trained_model_does_not_read_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    begun = recorder()
    for update in (40, 60, 80):
        begun.on_validation(update, 1.0, SCORES | {"source_gain": 0.01})
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["update 40", "update 60", "The model hardly reads its source", "update 80"]


@pytest.mark.parametrize("folder", ["kept", "lost"])
def test_a_training_that_goes_on_or_begins_again_is_the_same_run_also_on_another_machine(folder: str) -> None:
    state = Path(".state/f00d")
    record = begun(state, "f00d", TRANSLATION)
    record.write()
    if folder == "lost":
        shutil.rmtree(record.folder)
    again = begun(state, "f00d", TRANSLATION)
    assert (again.id, again.tags, again.score) == (record.id, {"fingerprint": "f00d"}, "bleu")


def test_tables_that_were_not_copied_with_the_state_begin_anew() -> None:
    first = recorder()
    first.on_update(record(20))
    state = first.state()
    Path("updates.csv").write_text("update")
    Path("validation.csv").unlink()
    recorder(state).on_update(record(40))
    assert updates() == [40]
