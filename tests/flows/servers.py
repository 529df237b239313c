"""Real servers on the loopback, for tests."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import requests

from tests.clone import ROOT
from tests.waiting import wait_for
from transformer_core.files import new_file


@contextmanager
def server(*arguments: str, log: Path, url: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The server that `python -m` starts, once it answers at `url`, in a process group of its own, all of which is killed at the end."""
    with log.open("ab") as output:
        command, started_with = [sys.executable, "-m", *arguments], {**os.environ, **environment}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=started_with, start_new_session=True)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return requests.get(url, timeout=5).ok
        except requests.RequestException:
            return False

    try:
        wait_for(answers, f"no answer at {url}", pause=0.2)
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def with_tables(home: Path) -> Path:
    """A home for Prefect whose database has its tables. They are made once for a version of Prefect, since that takes longest."""
    made = ROOT / f".pytest_cache/prefect-{version('prefect')}.db"
    for needed in (home, made.parent):
        needed.mkdir(parents=True, exist_ok=True)
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Of several processes that need them first, one makes them.
        if not made.exists():
            with TemporaryDirectory() as folder, new_file(made) as file:
                command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]
                environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
                subprocess.run(command, env={**environment, "PREFECT_HOME": folder}, check=True, capture_output=True)
                shutil.copyfile(Path(folder, "prefect.db"), file)
    if not (home / "prefect.db").exists():
        shutil.copyfile(made, home / "prefect.db")
    return home


@contextmanager
def mlflow_server(port: int, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """An MLflow server whose record is in a folder: the database server.db, and artifacts."""
    store = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "artifacts")]
    command = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    with server(*command, log=folder / "server.log", url=f"http://127.0.0.1:{port}/health") as process:
        yield process
