"""A training and a publication, and their record: a real server of MLflow does not answer for a while, and secrets are planted."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from flows.record.run import CPU, RunRecord
from flows.record.server import connect, search
from tests.flows.publishing import FINGERPRINT, before_publish, random_model
from tests.flows.servers import mlflow_server
from tests.flows.stages import set_params
from tests.flows.test_train_stage import prepare
from tests.waiting import free_port, wait_for

pytestmark = pytest.mark.slow  # About a minute: a server, and six programs that import torch and MLflow.

UPDATES = 1800
SECRETS = {"MLFLOW_TRACKING_TOKEN": "planted-token", "MLFLOW_TRACKING_PASSWORD": "planted-password", "PREFECT_API_KEY": "planted-key"}
LOGIN = "pipeline:planted-in-the-address"
Recorded = tuple[Path, MlflowClient, list[str]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """The folder of a training, with a publication of another in its folder `published`; their record; the outputs of all programs."""
    folder, port = tmp_path_factory.mktemp("recorded"), free_port()
    shown, address = f"MLflow at http://127.0.0.1:{port}", f"http://{LOGIN}@127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        (folder / "published").mkdir()
        patch.chdir(folder / "published")
        before_publish(random_model(tmp_path_factory.mktemp("model")))
        patch.chdir(folder)
        # A cooldown over all updates gives each point a value of its own.
        prepare("bpe", updates=UPDATES, save_every=600, validate_every=600, tokens_per_update=128, tokens_per_microbatch=128, cooldown=1)
        set_params(machine={"tracking_uri": address})
    environment = {**os.environ, **SECRETS, "MLFLOW_TRACKING_USERNAME": "pipeline", "MLFLOW_TRACKING_URI": address}
    outputs: list[str] = []

    def start(where: Path, *command: str) -> "subprocess.Popen[str]":
        run = [sys.executable, "-m", *command]
        return subprocess.Popen(run, cwd=where, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(process: "subprocess.Popen[str]") -> int:
        outputs.append("".join(process.communicate(timeout=300)))
        return process.returncode

    with mlflow_server(port, folder) as server:
        client = connect(f"http://127.0.0.1:{port}")
        training = start(folder, "flows.stages", "train")
        wait_for(lambda: any(run.data.metrics for run in search(client, "")), pause=0.2, process=training)
        os.killpg(server.pid, signal.SIGSTOP)
        assert training.poll() is None
        assert end(training) == 0, outputs
        assert f"{shown}: " in outputs[-1]
        assert end(start(folder / "published", "flows.stages", "publish")) == 69
        assert f"{shown} is unreachable: " in outputs[-1]
        assert not (folder / "published/results/published.json").exists()
        os.killpg(server.pid, signal.SIGCONT)
        for _ in range(2):
            assert end(start(folder, "flows.tracking", "sync")) == 0, outputs
            assert f"{shown} has all of" in outputs[-1]
        assert end(start(folder / "published", "flows.stages", "publish")) == 0, outputs
        assert f"training: http://127.0.0.1:{port}/#/experiments/" in outputs[-1]
        yield folder, client, outputs


def test_a_server_that_goes_away_in_a_training_gets_every_point_once(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, client, outputs = recorded
    monkeypatch.chdir(folder)
    assert not any("Traceback" in output for output in outputs)
    (run,) = search(client, f"tags.fingerprint != '{FINGERPRINT}'")
    assert run.info.status == "FINISHED"
    (file,) = folder.glob(".state/record/*/run.json")
    record = RunRecord.model_validate_json(file.read_text(encoding="utf-8"))
    tables = [*record.tables()]
    assert [table.path.name for table in tables] == ["updates.csv", "validation.csv", "machine-0.csv"]
    rows = [(step, name, value) for table in tables for step, _, values in record.rows(table, set()) for name, value in values.items()]
    assert any(CPU in name for _, name, _ in rows)
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in {name for _, name, _ in rows}}
    assert sorted((point.step, name, point.value) for name, points in histories.items() for point in points) == sorted(rows)
    trained = pd.read_csv(folder / "results/training/updates.csv")["update"].tolist()
    assert trained[-1] == UPDATES
    assert [point.step for point in histories["train/loss"]] == trained
    assert [point.step for point in histories["valid/bleu"]] == [600, 1200, 1800]
    assert "training/updates.csv" in {item.path for item in client.list_artifacts(run.info.run_id, "training")}
    assert run.data.tags["ranks"] == "1"
    assert run.data.tags["torch"]


def test_secrets_are_in_no_output_and_no_record(recorded: Recorded) -> None:
    """Tokens of the environment and the login in the address of MLflow's server."""
    folder, _, outputs = recorded
    planted = [LOGIN, *SECRETS.values()]
    assert [output for output in outputs if any(secret in output for secret in planted)] == []
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / "params.yaml"]
    assert {"server.db", "server.log", "published.json", "model.safetensors"} <= {path.name for path in files}
    assert [path for path in files if any(secret.encode() in path.read_bytes() for secret in planted)] == []
