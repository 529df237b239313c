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
def mlflow_server(port: int) -> Iterator[None]:
    """A real server on loopback in a process group of its own, all of which is ended."""
    store = ["--backend-store-uri", f"sqlite:///{Path.cwd()}/server.db", "--artifacts-destination", str(Path.cwd() / "artifacts")]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    with Path("server.log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_healthy(port)
        yield
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_until_healthy(port: int) -> None:
    deadline = time.monotonic() + 300
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, Path("server.log").read_text()
            time.sleep(0.2)
