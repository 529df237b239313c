"""Alarms, received by a web server of their own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.process.paths import DECODED, SCORES
from flows.process.runner import StageError
from flows.record import alarms
from flows.record.alarms import Vitals, alarm, watching
from flows.record.run import RunRecord, records
from flows.record.server import connect
from flows.stages import publish
from tests.flows.publishing import REFERENCES, before_publish
from tests.flows.stages import set_params, stage_here
from tests.flows.test_train_stage import prepare
from tests.serving import Quiet, serving
from tests.waiting import wait_for
from transformer_core.config import Machine, load_params
from transformer_core.corpus.text import write_lines
from transformer_core.files import read_json, write_json

Hook = tuple[str, list[str]]


@pytest.fixture
def hook() -> Iterator[Hook]:
    """The address of a web server, and the texts that it got."""
    texts: list[str] = []

    class Receiving(Quiet):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.reply()

    with serving(Receiving) as host:
        yield f"http://{host}/secret", texts


TROUBLES = {
    "slow": ({"speeds": [1000.0] * 25 + [499.0] * 5}, {}, "train: 499 target tok/s, half of its usual 1,000. Look for other processes"),
    "skipped": ({"skipped": [7, 8, 9]}, {}, "train: 3 updates in a row were skipped because they were not finite, up to 9. If it goes on"),
    "disk": ({}, {"alarm_disk_gb": 1e9}, "train: "),
}


@pytest.mark.usefixtures("empty_directory")
@pytest.mark.parametrize("cause", [*TROUBLES, ""])
def test_each_trouble_of_a_training_is_told_once_in_a_run(cause: str, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "CHECK_SECONDS", 0.01)
    looks, troubles = list[int](), Vitals.troubles
    monkeypatch.setattr(Vitals, "troubles", lambda *given: looks.append(1) or troubles(*given))
    address, texts = hook
    vitals, settings, text = TROUBLES.get(cause, ({"speeds": [1000.0, *[900.0] * 50], "skipped": [7, 8]}, {}, ""))
    record = RunRecord(id="f00d")
    record.write()
    (record.folder / alarms.LINK).write_text("http://mlflow/#/runs/1")
    for _ in range(2):  # The second is the same run, started again.
        looks.clear()
        with watching(Vitals(**vitals), Machine(alarm_url=address, **settings), record, Path(), Path("exit.json")):
            wait_for(lambda: len(looks) > 2)  # The third comes after all that the one before has sent.
    assert [found.startswith(text) and found.endswith(" http://mlflow/#/runs/1") for found in texts] == [True] * bool(cause)
    following = Vitals()
    for update in (3, 7, 8, 9):
        following.skip(update)
    assert following.skipped == [7, 8, 9]


@pytest.mark.usefixtures("empty_directory")
@pytest.mark.parametrize("host", ["127.0.0.1:9", "hooks..org"])
def test_an_address_that_is_away_costs_one_line(host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", f"http://{host}/secret")
    alarm(Machine(alarm_url="$HOOK"), "f00d", "disk", "the disk is full", "Free space.")
    assert capsys.readouterr().err.partition(",")[2] == " not sent: the disk is full. Free space.\n"


HUNG = """
import sys, time
from flows.record import alarms
from transformer_core.training.update import Updater
alarms.CHECK_SECONDS = 0.1
run = Updater.run
def hang(self, update, *given):
    if update > 2:
        time.sleep(600)
    return run(self, update, *given)
Updater.run = hang
sys.argv = ["flows.stages", "train"]
from flows.stages.__main__ import main
raise SystemExit(main())
"""


def exit_codes() -> list[str]:
    return [read_json(file)["tags"].get("exit_code") for file in records().glob("*/run.json")]


@pytest.mark.usefixtures("mlflow_store")
def test_a_training_that_hangs_is_told_and_ended_with_75_and_goes_on_from_its_last_save(hook: Hook) -> None:
    address, texts = hook
    prepare("bpe", updates=4)
    set_params(machine={"alarm_url": address, "stalled_minutes": 0.9})
    done = subprocess.run([sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=300, check=False)
    fault = "train: no update for 0.9 minutes, so it is ended; its saved state is kept"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (75, f"{fault}. Run it again to resume.")
    assert read_json(Path(".state/exit/train.json")) == {"code": 75, "message": fault, "remedy": "Run it again to resume."}
    assert len(texts) == 1
    assert texts[0].startswith(f"{fault}. The flow or the scheduler tries it again")
    set_params(machine={"stalled_minutes": 60.0})
    assert "75" in exit_codes()
    assert "going on after update 2" in stage_here("train", code=0).stderr
    assert "0" in exit_codes()
    assert "75" not in exit_codes()
    assert len(texts) == 1


@pytest.fixture
def published(mlflow_store: str, monkeypatch: pytest.MonkeyPatch, model_directory: Path, hook: Hook) -> MlflowClient:
    """A first version in the registry."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    before_publish(model_directory)
    set_params(machine={"alarm_url": hook[0], "alarm_score": 20.0})
    publish.run(load_params())
    assert hook[1] == []
    return connect(mlflow_store)


@pytest.mark.usefixtures("published")
def test_a_new_champion_a_worse_version_and_a_low_score_are_told_once_and_a_first_good_version_is_not(hook: Hook) -> None:
    texts = hook[1]
    for outputs, bleu in (([*REFERENCES[:-1], "Der 60. Hund läuft."], 86.0), (["Kein Satz von hier."] * 60, 1.5)):
        write_lines(DECODED / "test.hyp", outputs)
        write_json(SCORES, read_json(SCORES) | {"bleu": bleu})
        for _ in range(2):
            publish.run(load_params())
    subjects = [text.partition(":")[0].removeprefix("tatoeba-en-de/") for text in texts]
    assert subjects == ["2 is champion in place of version 1", "3 on test", "3"]
    assert "significantly worse than version 1" in texts[1]
    assert "1.50 on test is below machine.alarm_score, 20. Look at the examples" in texts[2]
    assert all("/#/experiments/" in text for text in texts)


def test_the_gain_over_the_model_that_a_training_started_from_is_a_tag_of_the_version(published: MlflowClient) -> None:
    gain = {"before": 40.0, "gain": 3.1, "low": 2.5, "high": 3.7, "p_value": 0.0001}
    write_json(SCORES, read_json(SCORES) | {"gains": {"test": gain}})
    publish.run(load_params())
    version = published.get_model_version("tatoeba-en-de", "2")
    assert version.tags["gain"] == "+3.10 (+2.50 to +3.70, p = 0.0001) over 40.00"


def test_a_stage_that_failed_for_good_is_told_by_the_flow(hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import pipeline

    def failing(*_: object, **__: object) -> str:
        raise StageError(65, "bpe: data/clean: empty")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "reproduce", failing)
    monkeypatch.setattr(pipeline, "get_run_logger", lambda: sys.modules["logging"].getLogger())
    pipeline.stage_task.fn("bpe", Machine(alarm_url=hook[0]))
    assert hook[1] == [f"bpe: data/clean: empty (exit code 65). {pipeline.TO_RESUME}"]
