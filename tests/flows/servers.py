"""Real servers on the loopback, for tests."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import requests

from tests.waiting import wait_for


@contextmanager
def server(*arguments: str, log: Path, url: str, **environment: str) -> Iterator[None]:
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
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def mlflow_server(port: int, folder: Path | None = None) -> Iterator[Path]:
    """An MLflow server whose record is in a folder (else the working directory); its database."""
    folder = (folder or Path()).resolve()
    database = folder / "server.db"
    store = ["--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", str(folder / "artifacts")]
    command = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    with server(*command, log=folder / "server.log", url=f"http://127.0.0.1:{port}/health"):
        yield database
