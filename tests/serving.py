"""Answers over HTTP on the loopback."""

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


class Quiet(BaseHTTPRequestHandler):
    """A handler that prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Private(Quiet, SimpleHTTPRequestHandler):
    """A folder, for whoever sends the login, which is USER:PASSWORD."""

    def __init__(self, folder: Path, login: str, *connection: Any) -> None:
        self.known = f"Basic {base64.b64encode(login.encode()).decode()}"
        super().__init__(*connection, directory=str(folder))  # Answers.

    def do_GET(self) -> None:
        if self.headers["Authorization"] == self.known:
            return super().do_GET()
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="private"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The host and port of a server with this handler."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=[0.02])  # Seconds until it hears that it is to end.
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
