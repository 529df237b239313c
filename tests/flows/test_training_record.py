"""A training and its record, with a real server of MLflow that goes away while it trains."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from flows import tracking
from flows.cluster.group import free_port
from flows.record.journal import JOURNALS, read_events
from flows.record.server import connect, experiment_id
from tests.flows.servers import mlflow_server
from tests.flows.test_train_stage import prepare
from tests.waiting import wait_for

UPDATES = 1800


def points(client: MlflowClient, name: str) -> list[tuple[int, float]]:
    """Of the only run there is."""
    (run,) = client.search_runs([experiment_id(client)])
    return [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]


@pytest.mark.slow
def test_a_server_that_goes_away_while_a_model_trains_costs_nothing_and_gets_every_point_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About two minutes, several on a busy machine: two starts of the server and a training beside it."""
    monkeypatch.chdir(tmp_path)
    # A cooldown over all updates gives each point a value of its own.
    prepare("bpe", updates=UPDATES, save_every=600, validate_every=600, tokens_per_update=128, tokens_per_microbatch=128, cooldown=1)
    port = free_port("127.0.0.1")
    uri = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    stage = [sys.executable, "-m", "flows.stages", "train"]
    with mlflow_server(port):
        training = subprocess.Popen(stage, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        client = connect(uri)
        wait_for(lambda: client.search_runs([experiment_id(client)]) and points(client, "train/loss"), pause=0.2, process=training)
        training.send_signal(signal.SIGSTOP)  # The server needs a moment to end, and the training could end before it.
        assert training.poll() is None
    training.send_signal(signal.SIGCONT)
    _, output = training.communicate(timeout=300)
    assert training.returncode == 0, output
    assert f"MLflow at {uri}: " in output
    assert "Traceback" not in output

    with mlflow_server(port):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert [tracking.main(["sync"]) for _ in range(2)] == [0, 0]
        (run,) = client.search_runs([experiment_id(client)])
        assert run.info.status == "FINISHED"
        trained = pd.read_csv("results/training/updates.csv")["update"].tolist()
        assert trained[-1] == UPDATES
        assert [step for step, _ in points(client, "train/loss")] == trained
        assert [step for step, _ in points(client, "valid/bleu")] == [600, 1200, 1800]
        (journal,) = JOURNALS.glob("*.jsonl")
        written = [(e["step"], name, value) for e in read_events(journal) if e["type"] == "metrics" for name, value in e["values"].items()]
        there = [(step, name, value) for name in {name for _, name, _ in written} for step, value in points(client, name)]
        assert sorted(there) == sorted(written)
        assert {read.dataset.name for read in run.inputs.dataset_inputs} == {"synthetic train en-de", "synthetic valid en-de"}
        assert "training/updates.csv" in {item.path for item in client.list_artifacts(run.info.run_id, "training")}
        assert run.data.tags["ranks"] == "1"
        assert run.data.tags["torch"]
