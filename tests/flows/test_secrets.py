"""Tokens of the environment and the login in the address of MLflow's server are printed nowhere and stored in no record."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cluster.group import free_port
from flows.record.server import connect, search
from tests.flows.publishing import before_publish, random_model
from tests.flows.servers import mlflow_server
from tests.flows.stages import set_params
from tests.flows.test_train_stage import prepare

SECRETS = {
    "MLFLOW_TRACKING_TOKEN": "planted-token",
    "MLFLOW_TRACKING_USERNAME": "pipeline",
    "MLFLOW_TRACKING_PASSWORD": "planted-password",
    "PREFECT_API_KEY": "planted-key",
}
LOGIN = "pipeline:planted-in-the-address"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, ready for stage train; the folder `published` in it is ready for stage publish."""
    monkeypatch.chdir(tmp_path)
    prepare("bpe")
    (tmp_path / "published").mkdir()
    monkeypatch.chdir(tmp_path / "published")
    before_publish(random_model(tmp_path / "model"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_secrets_are_in_no_output_and_no_record(folder: Path) -> None:
    """About 50 seconds: a server starts, and four programs import torch and MLflow."""
    port = free_port("127.0.0.1")
    address = f"http://{LOGIN}@127.0.0.1:{port}"
    set_params(machine={"tracking_uri": address})
    environment = {**os.environ, **SECRETS, "MLFLOW_TRACKING_URI": address, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    outputs: list[str] = []

    def run(where: Path, *command: str) -> int:
        done = subprocess.run([sys.executable, "-m", *command], cwd=where, env=environment, capture_output=True, text=True, check=False)
        outputs.append(done.stdout + done.stderr)
        return done.returncode

    assert run(folder, "flows.stages", "train") == 0  # MLflow is unreachable, which it prints.
    assert f"MLflow at http://127.0.0.1:{port}: " in outputs[-1]
    assert run(folder / "published", "flows.stages", "publish") == 69
    assert f"MLflow at http://127.0.0.1:{port} is unreachable: " in outputs[-1]
    with mlflow_server(port):
        assert run(folder, "flows.tracking", "sync") == 0
        assert f"MLflow at http://127.0.0.1:{port} has all of" in outputs[-1]
        assert run(folder / "published", "flows.stages", "publish") == 0, outputs[-1]
        assert f"training: http://127.0.0.1:{port}/#/experiments/" in outputs[-1]
        client = connect(f"http://127.0.0.1:{port}")
        assert len(search(client, "")) == 2

    planted = [*SECRETS.values(), LOGIN]
    planted.remove("pipeline")
    assert [output for output in outputs if any(secret in output for secret in planted)] == []
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / "params.yaml"]
    assert {"server.db", "server.log", "published.json", "model.safetensors"} <= {path.name for path in files}
    assert [path for path in files if any(secret.encode() in path.read_bytes() for secret in planted)] == []
