import errno
import fcntl
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, PERMISSION_DENIED, UNAUTHENTICATED
from requests import HTTPError

from flows import tracking
from flows.record import sending
from flows.record.lineage import lineage
from flows.record.run import RunRecord, records
from flows.record.sending import all_sent, background_sender, sync, unsent
from flows.record.server import PARENT_TAG, connect, experiment_id, reaching, tracking_uri
from tests.clone import git
from tests.flows.publishing import add_losses, points, recorded, training
from tests.refusals import refused
from tests.waiting import wait_for
from transformer_core.config import Machine

NOWHERE = "http://127.0.0.1:9"


def all_runs(client: MlflowClient) -> list[Run]:
    return list(client.search_runs([experiment_id(client)]))


def evaluation(identity: str = "evaluation-1", parent: str = "f00d", bleu: float = 86.4) -> RunRecord:
    """Write the record of an evaluation."""
    record = RunRecord(id=identity, parent=parent)
    record.measure(0, {"bleu": bleu})
    record.end()
    return record


def text(name: str) -> Path:
    """Write a file that holds its name."""
    Path(name).write_text(name)
    return Path(name)


def test_a_record_becomes_a_run_with_all_that_it_holds(client: MlflowClient, mlflow_store: str) -> None:
    losses = [1 / update for update in range(1, 1201)]
    record = recorded(losses=losses)
    record.parameters = {f"section{i}.key": str(i) for i in range(120)}
    record.tags |= {"corpus": "tatoeba"}
    (record.folder / "validation.csv").write_text("update,nll,score,seconds\n1200,1.5,31.4,600\n")
    (record.folder / "machine-1.csv").write_text("sample,seconds,cpu_utilization_percentage\n0,10,99\n1,20,98\n2,30,9")
    record.attach_files([text("report.html"), text("test.hyp")], "evaluation")
    Path("report.html").write_text("of the next run")
    record.end()
    sync(mlflow_store)

    run = training(client)
    assert (run.info.status, run.info.start_time, run.info.end_time) == ("FINISHED", record.start_ms, record.end_ms)
    assert run.data.params == record.parameters
    assert run.data.tags.items() >= {"corpus": "tatoeba", "fingerprint": "f00d", "record": "f00d"}.items()
    assert points(client) == list(enumerate(losses, 1))
    assert (points(client, "valid/nll"), points(client, "valid/bleu")) == ([(1200, 1.5)], [(1200, 31.4)])
    assert points(client, "system/node_1/cpu_utilization_percentage") == [(0, 99), (1, 98)]  # The last line is not complete.
    assert client.get_metric_history(run.info.run_id, "valid/nll")[0].timestamp == record.start_ms + 600_000
    assert {item.path for item in client.list_artifacts(run.info.run_id, "evaluation")} == {"evaluation/report.html", "evaluation/test.hyp"}
    assert Path(client.download_artifacts(run.info.run_id, "evaluation/report.html")).read_text() == "report.html"


def test_sending_again_changes_nothing(client: MlflowClient, mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = recorded(losses=[0.5] * 20)
    for name in ("report.html", "removed.html"):
        record.attach_files([text(name)])
    (record.folder / "artifacts/removed.html").unlink()
    record.measure(0, {"bleu": 40.0, "loss": float("nan")})
    record.end()
    sync(mlflow_store)
    before = training(client)
    monkeypatch.setattr(MlflowClient, "log_artifact", lambda *_: pytest.fail("sent again"))
    for _ in range(2):
        sync(mlflow_store, again=True)
    after = training(client)
    assert (after.info.status, after.data.tags, after.data.params) == (before.info.status, before.data.tags, before.data.params)
    assert len(all_runs(client)) == len(points(client, "bleu")) == 1
    assert points(client) == [(update, 0.5) for update in range(1, 21)]


@pytest.mark.parametrize("call", [2, 3, 4], ids=["before the second rows", "after them", "before the artifact"])
def test_the_next_sender_completes_a_run(call: int, client: MlflowClient, mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two tables, which are two calls, after one of parameters and tags; the training went on from an earlier update."""
    record = recorded(losses=[3.0, 2.0])
    (record.folder / "validation.csv").write_text("update,nll,score,seconds\n2,1.5,31.4,600\n")
    record.attach_files([text("report.html")])
    record.end()
    counted = Mock(side_effect=[None] * (call - 1) + [KeyboardInterrupt])
    with monkeypatch.context() as patch:
        for name in ("log_batch", "log_artifact"):
            real = getattr(MlflowClient, name)
            patch.setattr(MlflowClient, name, lambda *given, real=real, **named: counted() or real(*given, **named))
        with pytest.raises(KeyboardInterrupt):
            sync(mlflow_store)
    assert not all_sent(record.id, mlflow_store)
    resumed = "update,loss,seconds\n1,3.0,0.3\n2,2.0,0.7\n3,1.0,0.9\n"  # Other seconds.
    (record.folder / "updates.csv").write_text(resumed)
    sync(mlflow_store)
    assert (points(client), points(client, "valid/nll")) == ([(1, 3.0), (2, 2.0), (3, 1.0)], [(2, 1.5)])
    assert [item.path for item in client.list_artifacts(training(client).info.run_id)] == ["report.html"]
    assert len(all_runs(client)) == 1


def test_a_validation_between_those_that_were_sent_is_sent_as_well(client: MlflowClient, mlflow_store: str) -> None:
    """As of a training that went on from an earlier update, with more validations."""
    record = recorded(losses=[1.0])
    for updates in ([1000, 2000], [1000, 1750, 2000]):
        rows = "".join(f"{update},1.5,31.4,{update}\n" for update in updates)
        (record.folder / "validation.csv").write_text(f"update,nll,score,seconds\n{rows}")
        sync(mlflow_store)
    assert [step for step, _ in points(client, "valid/nll")] == [1000, 1750, 2000]


def test_an_evaluation_is_a_child_whichever_is_sent_first(client: MlflowClient, mlflow_store: str) -> None:
    evaluation()
    sync(mlflow_store)
    recorded(losses=[1.0])
    evaluation("evaluation-2", bleu=86.6)
    sync(mlflow_store)
    parent = training(client).info.run_id
    children = [run for run in all_runs(client) if run.data.tags.get(PARENT_TAG) == parent]
    assert sorted(run.data.metrics["bleu"] for run in children) == [86.4, 86.6]
    assert len(all_runs(client)) == 3
    assert points(client) == [(1, 1.0)]


def test_a_resumed_run_is_running_until_it_ends_and_has_the_parameters_of_now(client: MlflowClient, mlflow_store: str) -> None:
    record = recorded(losses=[1.0])
    for updates, status in (("40", "KILLED"), ("60", "RUNNING"), ("40", "FINISHED")):
        record.parameters = {"train.updates": updates}
        record.status, record.end_ms = status, None if status == "RUNNING" else record.start_ms + 1000  # type: ignore[assignment]
        record.write()
        sync(mlflow_store)
        run = training(client)
        assert (run.info.status, {**run.data.params, **run.data.tags}["train.updates"]) == (status, updates)
    assert len(all_runs(client)) == 1


def test_another_tracking_server_gets_the_whole_record(mlflow_store: str) -> None:
    other = mlflow_store.replace("mlflow.db", "other.db")
    Path("other.db").write_bytes(Path("mlflow.db").read_bytes())
    recorded(losses=[1.0]).end()
    for store in (mlflow_store, other):
        assert unsent(store) == ["f00d"]
        sync(store)
        assert points(connect(store)) == [(1, 1.0)]


@pytest.mark.usefixtures("default_params")
def test_the_command_sync_sends_what_mlflow_lacks(
    client: MlflowClient, mlflow_store: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded(losses=[1.0]).end()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE.replace("//", "//me:secret@"))
    assert tracking.main(["sync"]) == 69
    assert capfd.readouterr().err.startswith(f"MLflow at {NOWHERE} is unreachable: ")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    evaluation()
    assert sorted(unsent(mlflow_store)) == ["evaluation-1", "f00d"]
    sync(mlflow_store)
    client.delete_run(training(client).info.run_id)
    sync(mlflow_store)
    assert len(all_runs(client)) == 1  # A stage does not ask MLflow for what was sent.
    for _ in range(2):
        assert tracking.main(["sync"]) == 0
        assert mlflow_store in capfd.readouterr().out
        assert points(client) == [(1, 1.0)]
        (child,) = (run for run in all_runs(client) if PARENT_TAG in run.data.tags)
        assert child.data.tags[PARENT_TAG] == training(client).info.run_id
    assert unsent(mlflow_store) == []


def test_the_sender_sends_old_records_and_deleted_runs(client: MlflowClient, mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "INTERVAL_SECONDS", 0.1)
    recorded("left", [9.0], fingerprint="left").end()
    record = recorded(losses=[1.0])
    with background_sender(record, mlflow_store):
        wait_for(lambda: len(all_runs(client)) == 2 and points(client))
        client.delete_run(training(client).info.run_id)
        add_losses(record, [0.5], first=2)
        record.end()
    assert points(client) == [(1, 1.0), (2, 0.5)]
    assert points(client, fingerprint="left") == [(1, 9.0)]


@pytest.mark.parametrize(
    ("fault", "code", "line"),
    [
        ("artifacts", 69, "failed with error code 413"),
        ("run.json", 65, r"0aaa/run\.json: not valid JSON"),
        ("updates.csv", 65, r"0aaa/updates\.csv: not a table of a training\. Remove its folder"),
    ],
)
def test_a_record_that_cannot_be_sent_blocks_no_other_and_its_error_is_raised_at_the_end(
    fault: str, code: int, line: str, client: MlflowClient, mlflow_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose artifacts are too large, or a file of which is damaged."""
    first, last = recorded("0aaa", [1.0], fingerprint="first"), recorded("0bbb", [1.0], fingerprint="last")
    first.attach_files([text("report.html")])
    for record in (first, last):
        record.end()
    if fault == "artifacts":
        too_large = MlflowException("API request failed with error code 413 != 200", INTERNAL_ERROR)
        monkeypatch.setattr(MlflowClient, "log_artifact", Mock(side_effect=too_large))
    else:
        with (first.folder / fault).open("a") as file:
            file.write("2,x,1\n")
    with refused(code, line):
        sync(mlflow_store)
    assert points(client, fingerprint="last") == [(1, 1.0)]
    assert unsent(mlflow_store) == ["0aaa"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MlflowException("no permission", PERMISSION_DENIED), 78),
        (MlflowException("error code 401 != 200", UNAUTHENTICATED), 78),
        (HTTPError(response=Mock(status_code=403)), 78),
        (HTTPError(response=Mock(status_code=503)), 69),
        (MlflowException("the database is away", INTERNAL_ERROR), 69),
        (ConnectionError("refused"), 69),
    ],
)
def test_what_a_retry_would_meet_again_is_told_with_78_and_what_may_pass_with_69(error: Exception, code: int) -> None:
    with refused(code, f"MLflow at {NOWHERE} (refuses|is unreachable): "), reaching(NOWHERE):
        raise error


def test_a_full_disk_of_this_machine_is_not_said_to_be_mlflow() -> None:
    with pytest.raises(OSError, match="No space left"), reaching(NOWHERE):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/report.html")


def test_one_process_sends_at_a_time_and_another_waits_for_it(client: MlflowClient, mlflow_store: str) -> None:
    recorded().end()
    waiting = threading.Thread(target=sync, args=[mlflow_store])
    with (records() / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting.start()
        waiting.join(1)
        assert all_runs(client) == []
    waiting.join()
    assert all_sent("f00d", mlflow_store)


def test_the_configured_address_goes_before_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking_uri(Machine()) == "sqlite:///mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://environment:5000")
    assert tracking_uri(Machine()) == "http://environment:5000"
    assert tracking_uri(Machine(tracking_uri="http://params:5000")) == "http://params:5000"


@pytest.mark.usefixtures("empty_directory")
def test_a_tree_differs_from_its_commit_by_what_is_tracked_but_not_by_the_lock_that_a_run_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"slurm_job_id": "4711", "slurm_job_account": "mt", "slurm_job_nodelist": "gpu[1-2]"}
    for name, value in job.items():
        monkeypatch.setenv(name.upper(), value)
    assert "git_dirty" not in lineage()
    assert {name: value for name, value in lineage().items() if name.startswith("slurm")} == job
    git("init", "-q")
    for name in ("dvc.lock", "params.yaml"):
        Path(name).write_text("a: 1\n", encoding="utf-8")
    git("add", ".")
    git("commit", "-q", "-m", "a")
    Path("dvc.lock").write_text("a: 2\n", encoding="utf-8")
    assert (lineage()["git_dirty"], len(lineage()["git_commit"])) == ("false", 12)
    Path("params.yaml").write_text("a: 2\n", encoding="utf-8")
    assert lineage()["git_dirty"] == "true"


# Processes that wait for each other before they create the record.
AT_ONCE = """
import sys
import mlflow.store.tracking.sqlalchemy_store
from flows.record.server import connect, experiment_id
print("ready", flush=True)
sys.stdin.readline()
print(experiment_id(connect("sqlite:///mlflow.db")))
"""


@pytest.mark.slow
def test_processes_that_create_the_record_at_once_find_the_same_one(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen([sys.executable, "-c", AT_ONCE], cwd=tmp_path, text=True, **pipes) for _ in range(2)]
    ready = [process.stdout.readline() for process in processes if process.stdout]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=200) for process in processes]
    assert ready == ["ready\n"] * 2
    assert [out for out, _ in ended] == ["1\n"] * 2, ended
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "mlruns"}
    assert not list((tmp_path / "mlruns").iterdir())
