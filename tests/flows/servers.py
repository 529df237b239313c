"""Real servers on the loopback, for tests."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens to."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def mlflow_server(port: int, folder: Path | None = None) -> Iterator[Path]:
    """The database of a real server on the loopback in a folder (else the working directory); its process group is killed at the end."""
    folder = (folder or Path()).resolve()
    database, log = folder / "server.db", folder / "server.log"
    store = ["--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination", str(folder / "artifacts")]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    with log.open("ab") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_until_healthy(port, log)
        yield database
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_until_healthy(port: int, log: Path) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
