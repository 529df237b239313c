"""Files that an earlier version wrote are read and give the recorded numbers, or are refused in one line that says how to go on."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flows.dvc.commands import failure
from flows.process.paths import CHECKPOINT_SCORES, CHECKPOINTS
from flows.record.run import read_record
from flows.stages.average import _chosen
from tests.refusals import refused
from tests.upgrade.make import EXIT, FILES, RECORD, STOPPED, Counter, logits, trained, translations
from transformer_core.config import Average
from transformer_core.corpus.tokens.binary import check_split, open_split
from transformer_core.decoding.translator import load_for_decoding
from transformer_core.evaluation.scoring import read_aligned
from transformer_core.files import read_json, sha256_of, write_json
from transformer_core.training.checkpoint import StateDirectory, average

EXPECTED = read_json(FILES / "expected.json")
# The machine of the record and this one may sum in another order: float32 rounds by 6e-8, in a few hundred terms of a few units.
NEAR = 1e-4


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "state").rename(".state")
    return tmp_path


def test_a_model_gives_the_logits_and_the_translations_that_it_gave(files: Path) -> None:
    for ours, theirs in zip(logits(files / "model"), EXPECTED["logits"], strict=True):
        assert ours == pytest.approx(theirs, abs=NEAR)
    for row, recorded in zip(translations(files / "model"), EXPECTED["translations"], strict=True):
        assert [one.text for one in row] == [one["text"] for one in recorded]
        assert [one.log_probability for one in row] == pytest.approx([one["log_probability"] for one in recorded], abs=30 * NEAR)


def test_token_ids_are_those_that_were_written(files: Path) -> None:
    check_split(files / "binarized" / "train")
    split = open_split(files / "binarized" / "train")
    assert [split.source[number].tolist() for number in range(len(split))] == EXPECTED["tokens"]
    assert [split.target[number].tolist() for number in range(len(split))] == EXPECTED["tokens"][::-1]


def test_a_stopped_training_goes_on_to_the_weights_that_it_would_have_had(files: Path) -> None:
    observer = Counter()
    assert trained(files / "training", files / "binarized", observer) == pytest.approx(EXPECTED["weights"], abs=NEAR)
    assert observer.restored == Counter().state()


def test_checkpoints_and_their_scores_are_read(files: Path) -> None:
    (checkpoint,) = (files / "training/checkpoints").iterdir()
    weights, averaged = load_file(checkpoint), average([checkpoint])
    assert averaged.keys() == weights.keys()
    assert all(torch.equal(weights[name], weight) for name, weight in averaged.items())
    (files / CHECKPOINTS).mkdir(parents=True)
    for update in (10, 20, 30):
        (files / CHECKPOINTS / f"update-{update:08d}.safetensors").touch()
    shutil.copyfile("scores.json", CHECKPOINT_SCORES)
    assert _chosen(Average(of="best", count=2, shortlist=0)) == [10, 20]


def test_hypotheses_are_read(files: Path) -> None:
    best = [row[0]["text"] for row in EXPECTED["translations"]]
    assert read_aligned(files / "decode/test.hyp") == [best]
    rows = (files / "decode/test.nbest.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(row)[0]["text"] for row in rows] == best


@pytest.mark.usefixtures("files")
def test_the_record_of_a_run_is_read() -> None:
    record = read_record(RECORD.id)
    assert record == RECORD
    (row,) = record.rows(next(record.tables()), set())
    assert row == (100, RECORD.start_ms + 2500, {"train/loss": 3.25})


@pytest.mark.usefixtures("files")
def test_the_report_of_a_stopped_stage_is_read() -> None:
    code, message, remedy = EXIT
    assert failure("train", 255, "") == (code, f"train: {message}. {remedy}")


def test_files_of_a_later_format_are_refused_in_one_line_that_says_how_to_go_on(files: Path) -> None:
    for name, read in (("model/config.json", load_for_decoding), ("binarized/train/meta.json", open_split)):
        file = files / name
        document = read_json(file)
        now = document["format"]
        write_json(file, document | {"format": now + 1})
        with refused(65, rf"{file}: format: must be {now}, got {now + 1}\. Another version .*: make it again, or use that version"):
            read(file.parent)  # type: ignore[operator]


def test_a_state_of_a_later_format_is_passed_over_with_a_warning(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = files / f"training/state-{STOPPED:08d}.pt"
    state = torch.load(file, weights_only=True)
    torch.save(state | {"format": state["format"] + 1}, file)
    file.with_suffix(".sha256").write_text(sha256_of(file), encoding="ascii")
    with caplog.at_level(logging.WARNING):
        assert list(StateDirectory(files / "training", keep=2).states()) == []
    assert f"{file}: damaged or of another format, passed over" in caplog.text
