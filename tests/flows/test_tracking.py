import fcntl
import json
import shutil
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from flows import tracking
from flows.record import sending
from flows.record.journal import Journal, position_file
from flows.record.lineage import lineage
from flows.record.sending import SENDER_LOCK, all_sent, background_sender, sync
from flows.record.server import PARENT_TAG, connect, experiment_id, run_link, search
from flows.record.store import tracking_uri
from tests.clone import git
from tests.flows.publishing import points, training
from tests.waiting import wait_for
from transformer_core.config import Machine
from transformer_core.files import read_json, write_json
from transformer_core.training.checkpoint import state_root

DATASET = {"name": "tiny train en-de", "digest": "0123abcd", "source": "[]", "pairs": 60, "context": "training"}
NOWHERE = "http://127.0.0.1:9"
NOWHERE_WITH_LOGIN = "http://me:secret@127.0.0.1:9"


@pytest.fixture
def client(mlflow_store: str) -> MlflowClient:
    return connect(mlflow_store)


def all_runs(client: MlflowClient) -> list[Run]:
    return list(client.search_runs([experiment_id(client)]))


def test_a_journal_becomes_a_run_with_all_that_it_holds(client: MlflowClient, mlflow_store: str) -> None:
    Path("report.html").write_text("<h1>BLEU</h1>")
    Path("test.hyp").write_text("Ein Hund läuft.\n")
    journal = Journal("f00d")
    journal.parameters({f"section{i}": {"key": i} for i in range(120)})
    journal.tags(
        {
            "corpus": "tatoeba",
        }
    )
    for step in range(1, 2501):
        journal.metrics(step, {"loss": 1 / step})
    journal.metrics(2500, {"nll": 1.5}, context="valid")
    journal.inputs([DATASET])
    for path in ("report.html", "test.hyp"):
        journal.artifact(Path(path), folder="evaluation")
    Path("report.html").write_text("of the next run")
    Path("test.hyp").unlink()
    journal.end()
    sync(mlflow_store)

    run = training(client)
    assert run.info.status == "FINISHED"
    assert run.data.params["section7.key"] == "7"
    assert len(run.data.params) == 120
    assert run.data.tags["corpus"] == "tatoeba"
    assert points(client) == [(step, 1 / step) for step in range(1, 2501)]
    assert points(client, "valid/nll") == [(2500, 1.5)]
    assert {item.path for item in client.list_artifacts(run.info.run_id, "evaluation")} == {"evaluation/report.html", "evaluation/test.hyp"}
    assert Path(client.download_artifacts(run.info.run_id, "evaluation/report.html")).read_text() == "<h1>BLEU</h1>"
    (read,) = run.inputs.dataset_inputs
    assert (read.dataset.name, read.dataset.digest, [tag.value for tag in read.tags]) == ("tiny train en-de", "0123abcd", ["training"])


def test_sending_again_from_the_beginning_adds_nothing(client: MlflowClient, mlflow_store: str) -> None:
    journal = Journal("f00d")
    for step in range(20):
        journal.metrics(step, {"loss": 0.5})
    journal.inputs([DATASET])
    sync(mlflow_store)
    position_file(journal.path).unlink()
    sync(mlflow_store)
    assert len(all_runs(client)) == 1
    assert len(training(client).inputs.dataset_inputs) == 1
    assert points(client) == [(step, 0.5) for step in range(20)]


def test_an_evaluation_is_a_child_whichever_is_sent_first(client: MlflowClient, mlflow_store: str) -> None:
    Journal("evaluation-1", parent="f00d").metrics(1200, {"bleu": 86.4})
    sync(mlflow_store)
    journal = Journal("f00d")
    journal.metrics(1, {"loss": 1.0})
    Journal("evaluation-2", parent="f00d").metrics(1200, {"bleu": 86.6})
    sync(mlflow_store)
    parent = training(client).info.run_id
    children = [run for run in all_runs(client) if run.data.tags.get("mlflow.parentRunId") == parent]
    assert sorted(run.data.metrics["bleu"] for run in children) == [86.4, 86.6]
    assert len(all_runs(client)) == 3
    assert points(client) == [(1, 1.0)]


def test_a_resumed_run_is_running_until_it_ends(client: MlflowClient, mlflow_store: str) -> None:
    Journal("f00d").end("KILLED")
    sync(mlflow_store)
    assert training(client).info.status == "KILLED"
    resumed = Journal("f00d")
    sync(mlflow_store)
    assert training(client).info.status == "RUNNING"
    resumed.end()
    sync(mlflow_store)
    assert training(client).info.status == "FINISHED"
    assert len(all_runs(client)) == 1


@pytest.mark.parametrize(("ended", "status"), [("", "KILLED"), ("KILLED", "KILLED"), ("FAILED", "FAILED")])
def test_a_training_begun_again_without_a_saved_state_is_a_run_of_its_own(
    client: MlflowClient, mlflow_store: str, ended: str, status: str
) -> None:
    """Killed outright, stopped or failed, then begun again with other code; a run whose process was killed has not recorded its end."""
    stopped = Journal("f00d")
    for step, loss in ((20, 9.0), (40, 8.0)):
        stopped.metrics(step, {"loss": loss})
    if ended:
        stopped.end(ended)
    sync(mlflow_store)
    for step, loss in ((20, 5.0), (40, 4.0)):
        Journal("f00d", resumed=step > 20).metrics(step, {"loss": loss})
    sync(mlflow_store)
    (old,) = [run for run in all_runs(client) if run.info.run_id != training(client).info.run_id]
    assert points(client) == [(20, 5.0), (40, 4.0)]
    assert (old.info.status, training(client).info.status) == (status, "RUNNING")
    assert [point.value for point in client.get_metric_history(old.info.run_id, "loss")] == [9.0, 8.0]


def test_another_tracking_server_gets_the_whole_journal(mlflow_store: str) -> None:
    shutil.copyfile("mlflow.db", "other.db")
    Journal("f00d").metrics(1, {"loss": 1.0})
    sync(mlflow_store)
    other = mlflow_store.replace("mlflow.db", "other.db")
    sync(other)
    assert points(connect(other)) == [(1, 1.0)]


def test_an_experiment_in_a_temporary_copy_sees_what_the_repository_has_sent(
    mlflow_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal("f00d")
    sync("sqlite:///mlflow.db")
    copy = tmp_path / ".dvc/tmp/exps/copy"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    monkeypatch.setenv("DVC_EXP_NAME", "dry-nibs")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert tracking_uri(Machine()) == mlflow_store
    assert all_sent(tmp_path / journal.path, mlflow_store)
    assert state_root() == tmp_path / ".state"


@pytest.mark.parametrize("how", ["deleted on its page", "lost"])
def test_a_run_that_mlflow_no_longer_has_is_sent_again(how: str, client: MlflowClient, mlflow_store: str) -> None:
    journal = Journal("f00d")
    journal.metrics(1, {"loss": 1.0})
    sync(mlflow_store)
    if how == "lost":
        write_json(position_file(journal.path), {**read_json(position_file(journal.path)), "run_id": "lost"})
    else:
        client.delete_run(training(client).info.run_id)
    assert all_sent(journal.path, mlflow_store)
    journal.metrics(2, {"loss": 0.5})
    sync(mlflow_store)
    assert points(client) == [(1, 1.0), (2, 0.5)]


@pytest.mark.usefixtures("default_params")
def test_the_command_sync_sends_again_what_was_all_sent_and_mlflow_no_longer_has(
    client: MlflowClient, mlflow_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    deleted, lost = Journal("f00d"), Journal("beef")
    for journal in (deleted, lost):
        journal.metrics(1, {"loss": 1.0})
    child = Journal("evaluation-1", parent="f00d")
    child.metrics(1, {"bleu": 1.0})
    sync(mlflow_store)
    (evaluation,) = search(client, f"tags.journal = '{child.identity}'")
    for run in all_runs(client):
        if run.info.run_id != evaluation.info.run_id:
            client.delete_run(run.info.run_id)
    write_json(position_file(lost.path), {**read_json(position_file(lost.path)), "run_id": "lost"})
    sync(mlflow_store)
    assert [run.info.run_id for run in all_runs(client)] == [
        evaluation.info.run_id
    ]  # A stage does not ask MLflow for what its positions say it has.
    for _ in range(2):
        assert tracking.main(["sync"]) == 0
        assert points(client) == points(client, fingerprint="beef") == [(1, 1.0)]
        assert len(all_runs(client)) == 3
        assert client.get_run(evaluation.info.run_id).data.tags[PARENT_TAG] == training(client).info.run_id


def test_an_event_that_mlflow_refuses_does_not_block_later_ones(
    client: MlflowClient, mlflow_store: str, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal("f00d")
    journal.metrics(1, {"loss": 1.0})
    journal.metrics(2, {"not(a)name": 1.0})
    journal.metrics(3, {"loss": 0.5})
    sync(mlflow_store)
    assert points(client) == [(1, 1.0), (3, 0.5)]
    assert "MLflow refused an event of type metrics: " in caplog.text
    assert "not(a)name" in caplog.text


def test_a_corpus_of_very_many_files_keeps_its_data_set(client: MlflowClient, mlflow_store: str, caplog: pytest.LogCaptureFixture) -> None:
    origin = json.dumps([{"split": "train", "url": f"https://example.org/{number}"} for number in range(2_000)])
    Journal("f00d").inputs([{**DATASET, "source": origin}])
    sync(mlflow_store)
    (read,) = training(client).inputs.dataset_inputs
    assert json.loads(read.dataset.source) == {"origin": {"parts": 2_000, "sha256": sha256(origin.encode()).hexdigest()}}
    assert caplog.text == ""


def test_the_sender_sends_while_the_stage_runs_also_journals_of_earlier_stages(
    client: MlflowClient, mlflow_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "INTERVAL_SECONDS", 0.2)
    Journal("left").metrics(1, {"loss": 9.0})
    journal = Journal("f00d")
    with background_sender(journal.path, mlflow_store):
        journal.metrics(1, {"loss": 1.0})
        wait_for(lambda: all_sent(journal.path, mlflow_store))
        journal.metrics(2, {"loss": 0.5})
    assert points(client) == [(1, 1.0), (2, 0.5)]
    assert points(client, fingerprint="left") == [(1, 9.0)]


@pytest.mark.usefixtures("mlflow_store")
def test_a_sender_whose_server_is_unavailable_prints_one_line_and_raises_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "CLOSING_SECONDS", 1.0)
    journal = Journal("f00d")
    with background_sender(journal.path, NOWHERE_WITH_LOGIN):
        journal.metrics(1, {"loss": 1.0})
    error = capfd.readouterr().err
    assert error.startswith(f"MLflow at {NOWHERE}: ")
    assert error.endswith("python -m flows.tracking sync\n")
    assert error.count("\n") == 1


def test_one_process_sends_at_a_time_and_another_waits_for_it(mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached = threading.Event()

    def connect_and_tell(uri: str) -> MlflowClient:
        reached.set()
        return connect(uri)

    monkeypatch.setattr(sending, "connect", connect_and_tell)  # The first that is done with the lock.
    journal = Journal("f00d")
    waiting = threading.Thread(target=sync, args=[mlflow_store])
    with SENDER_LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting.start()
        assert not reached.wait(0.5)
    waiting.join()
    assert all_sent(journal.path, mlflow_store)


def test_a_journal_that_grows_meanwhile_does_not_fail_the_sending_of_the_others(mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an experiment's training does while another experiment publishes."""
    training, other = Journal("f00d"), Journal("beef")
    send = sending.send

    def grow_and_send(*given: Any) -> None:
        training.metrics(training.next_step("system/load"), {"system/load": 1.0})
        send(*given)

    monkeypatch.setattr(sending, "send", grow_and_send)
    sync(mlflow_store)
    assert all_sent(other.path, mlflow_store)


def test_the_configured_address_goes_before_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking_uri(Machine()) == "sqlite:///mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://environment:5000")
    assert tracking_uri(Machine()) == "http://environment:5000"
    assert tracking_uri(Machine(tracking_uri="http://params:5000")) == "http://params:5000"


@pytest.mark.usefixtures("default_params")
def test_sync_from_the_command_line_ends_with_69_when_the_server_is_away(
    mlflow_store: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal("f00d")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE_WITH_LOGIN)
    assert tracking.main(["sync"]) == 69
    assert capfd.readouterr().err.startswith(f"MLflow at {NOWHERE} is unreachable: ")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    assert tracking.main(["sync"]) == 0
    assert mlflow_store in capfd.readouterr().out


@pytest.mark.usefixtures("empty_directory")
def test_a_tree_differs_from_its_commit_by_what_is_tracked_but_not_by_the_lock_that_a_run_writes() -> None:
    assert "git_dirty" not in lineage()
    git("init", "-q")
    for name in ("dvc.lock", "params.yaml"):
        Path(name).write_text("a: 1\n", encoding="utf-8")
    git("add", ".")
    git("commit", "-q", "-m", "a")
    Path("dvc.lock").write_text("a: 2\n", encoding="utf-8")
    assert (lineage()["git_dirty"], len(lineage()["git_commit"])) == ("false", 12)
    Path("params.yaml").write_text("a: 2\n", encoding="utf-8")
    assert lineage()["git_dirty"] == "true"


def test_a_link_leads_to_the_run(client: MlflowClient, mlflow_store: str) -> None:
    Journal("f00d")
    sync(mlflow_store)
    run = training(client)
    path = f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?workflowType=machine_learning"
    assert run_link(mlflow_store, run) == f"http://127.0.0.1:5000{path}"
    assert run_link("https://me:secret@mlflow.example/", run) == f"https://mlflow.example{path}"
