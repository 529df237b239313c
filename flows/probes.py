"""What `transformer-core doctor` runs: it writes, finds and removes an object in the DVC remote or MLflow, or reads automations."""

import sys

from flows.record.server import connect

EXPERIMENT = "doctor"
HEARTBEAT = "prefect.flow-run.heartbeat"


def probe_dvc(name: str) -> None:
    """Write, list, read and remove an object of this name in the default remote. Raises the error of its client library."""
    from dvc.repo import Repo  # type: ignore[import-untyped]  # Here, because importing DVC starts a thread.

    with Repo() as repo:
        store = repo.cloud.get_remote_odb()
        file = store.fs.join(store.path, name)
        store.fs.makedirs(store.path, exist_ok=True)
        store.fs.pipe_file(file, b"doctor")
        assert file in store.fs.ls(store.path, detail=False), "an object that was written is not listed"
        assert store.fs.cat_file(file) == b"doctor", "an object that was written reads otherwise"
        store.fs.remove(file)


def probe_mlflow(address: str) -> None:
    """Write and list an artifact of a run, which is deleted. Raises the error of MLflow or its store."""
    client = connect(address)
    found = client.get_experiment_by_name(EXPERIMENT)
    run = client.create_run(found.experiment_id if found else client.create_experiment(EXPERIMENT)).info.run_id
    try:
        client.log_text(run, "doctor", "doctor.txt")
        assert client.list_artifacts(run), "an artifact that was written is not listed"
    finally:
        client.delete_run(run)


def probe_prefect(_: str) -> None:
    """Look for the automation for lost machines. Raises AssertionError: the server has none that is on."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        on = [one.trigger for one in client.read_automations() if one.enabled]
    assert any(HEARTBEAT in getattr(trigger, "expect", ()) for trigger in on), "no automation ends runs without a heartbeat"


if __name__ == "__main__":
    {"dvc": probe_dvc, "mlflow": probe_mlflow, "prefect": probe_prefect}[sys.argv[1]](sys.argv[2])
