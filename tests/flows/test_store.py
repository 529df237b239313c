"""The record in a file: created by several processes at once, copied and moved."""

import errno
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import mlflow
import pytest

from flows.record.run import RunRecord
from flows.record.sending import sync
from flows.record.server import connect, experiment_id, reaching
from transformer_core.errors import UserError
from transformer_core.files import write_json

URI = "sqlite:///mlflow.db"
# Processes that wait for each other before they create the record.
AT_ONCE = f"""
import sys
import mlflow.store.tracking.sqlalchemy_store
from flows.record.server import connect, experiment_id
print("ready", flush=True)
sys.stdin.readline()
print(experiment_id(connect("{URI}")))
"""
# A process of its own, because MLflow keeps the address of a run's files.
IN_THE_COPY = f"""
import json
from flows.record.sending import sync
from flows.record.server import connect, search
sync("{URI}")
client = connect("{URI}")
run = search(client, "tags.fingerprint = 'f00d'")[0]
files = [item.path for item in client.list_artifacts(run.info.run_id)]
print(json.dumps([files, client.get_model_version_download_uri("toy", "1")]))
"""


def test_a_full_disk_of_this_machine_is_not_said_to_be_mlflow() -> None:
    with pytest.raises(OSError, match="No space left"), reaching(URI):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/report.html")
    with pytest.raises(UserError, match=r"^MLflow at .* is unreachable: refused"), reaching(URI):
        raise ConnectionError("refused")


def text_of(file: Path) -> str:
    with closing(sqlite3.connect(file)) as connection:
        return "\n".join(connection.iterdump())


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


def test_a_copied_or_moved_repository_uses_its_own_files(mlflow_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is used beside the original, so that nothing can be found there by accident."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)  # Put back afterwards: the next line sets it too.
    mlflow.set_tracking_uri(mlflow_store)  # It finds the model of the new version.
    Path("report.html").write_text("<h1>BLEU</h1>")
    record = RunRecord(id="f00d", tags={"fingerprint": "f00d"})
    record.attach_files([Path("report.html")])
    record.end()
    sync(mlflow_store)
    client = connect(mlflow_store)
    model = client.create_logged_model(experiment_id(client), name="translator")
    write_json(Path(model.artifact_location) / "model.json", {})
    client.create_registered_model("toy")
    client.create_model_version("toy", model.model_uri, model_id=model.model_id)

    copy = tmp_path.with_name("a copy_%")
    shutil.copytree(tmp_path, copy)
    original = text_of(tmp_path / "mlflow.db"), set(tmp_path.rglob("*"))
    monkeypatch.chdir(copy)
    record.attach_files([Path("report.html")], folder="again")
    record.write()
    done = subprocess.run([sys.executable, "-c", IN_THE_COPY], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    files, version = json.loads(done.stdout)
    assert files == ["again", "report.html"]
    assert len(list(copy.glob("mlruns/**/again/report.html"))) == 1
    assert (Path(version) / "model.json").is_file()
    assert str(tmp_path) not in text_of(copy / "mlflow.db")
    assert (text_of(tmp_path / "mlflow.db"), set(tmp_path.rglob("*"))) == original
