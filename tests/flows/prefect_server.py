"""A Prefect server of its own."""

from contextlib import ExitStack
from pathlib import Path

from tests.flows.servers import server, with_tables
from tests.waiting import free_port


class PrefectServer:
    """A Prefect server with a home of its own, which can be killed and started again at its address."""

    def __init__(self, folder: Path) -> None:
        self._port, self._log = free_port(), folder / "server.log"
        self.address = f"http://127.0.0.1:{self._port}/api"
        self.environment = {"PREFECT_HOME": str(with_tables(folder)), "PREFECT_API_URL": self.address}
        self._running = ExitStack()

    def start(self) -> None:
        command = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self._port)]
        self._running.enter_context(server(*command, log=self._log, url=f"{self.address}/health", **self.environment))

    def close(self) -> None:
        """Kill it."""
        self._running.close()
