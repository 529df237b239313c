"""The record in a file: created by several processes at once, copied and moved."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from flows.record.server import reaching
from transformer_core.errors import UserError

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


def test_a_full_disk_of_this_machine_is_not_said_to_be_mlflow() -> None:
    with pytest.raises(OSError, match="No space left"), reaching(URI):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/report.html")
    with pytest.raises(UserError, match=r"^MLflow at .* is unreachable: refused"), reaching(URI):
        raise ConnectionError("refused")


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
