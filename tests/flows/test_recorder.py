"""The curves on disk: whole lines, cut back to where a saved state left them, begun anew where there was none."""

import csv
from pathlib import Path

from flows.record.journal import Journal
from flows.record.recorder import Recorder
from transformer_core.training.records import UpdateRecord


def record(update: int) -> UpdateRecord:
    return UpdateRecord(update, 1, 2.5, 9.0, 1e-3, 0.5, 1000.0, 0.1, 0.01, 0.3, 0, float(update))


def recorder_in(folder: Path) -> Recorder:
    return Recorder(folder, Journal("run", directory=folder / "journal"), updates=100, score="bleu")


def updates_in(folder: Path) -> list[str]:
    with (folder / "updates.csv").open(encoding="utf-8", newline="") as file:
        return [row["update"] for row in csv.DictReader(file)]


def test_a_resumed_recorder_goes_on_where_the_state_was_saved(tmp_path: Path) -> None:
    first = recorder_in(tmp_path)
    first.begin()
    first.on_update(record(20))
    state = first.state()
    first.on_update(record(40))  # after the save: the resumed training will come here again
    second = recorder_in(tmp_path)
    second.restore(state)
    second.on_update(record(40))
    second.on_update(record(60))
    assert updates_in(tmp_path) == ["20", "40", "60"]


def test_a_training_from_the_start_keeps_nothing_of_one_that_never_saved(tmp_path: Path) -> None:
    first = recorder_in(tmp_path)
    first.begin()
    first.on_update(record(20))
    second = recorder_in(tmp_path)
    second.begin()
    second.on_update(record(20))
    assert updates_in(tmp_path) == ["20"]


def test_validation_scores_stand_in_their_own_file(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.begin()
    recorder.on_validation(50, 12.0, {"nll": 2.0, "perplexity": 7.389, "accuracy": 0.5, "bleu": 31.4})
    expected = "update,nll,perplexity,accuracy,score,seconds\n50,2.0,7.389,0.5,31.4,12.0\n"
    assert (tmp_path / "validation.csv").read_text(encoding="utf-8") == expected


def test_the_lines_of_skipped_updates_are_cut_back_with_the_curves(tmp_path: Path) -> None:
    first = recorder_in(tmp_path)
    first.begin()
    first.on_skipped(3, [17, 4])
    state = first.state()
    first.on_skipped(5, [1])
    second = recorder_in(tmp_path)
    second.restore(state)
    second.on_skipped(6, [2])
    assert (tmp_path / "skipped.csv").read_text(encoding="utf-8") == "update,line\n3,17\n3,4\n6,2\n"
