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

    def reply(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        """Answer; an underscore in the name of a header stands for a hyphen."""
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


class Private(Quiet, SimpleHTTPRequestHandler):
    """A folder, for whoever sends the login, which is USER:PASSWORD."""

    def __init__(self, folder: Path, login: str, *connection: Any) -> None:
        self.known = f"Basic {base64.b64encode(login.encode()).decode()}"
        super().__init__(*connection, directory=str(folder))  # Answers.

    def do_GET(self) -> None:
        if self.headers["Authorization"] == self.known:
            return super().do_GET()
        return self.reply(401, WWW_Authenticate='Basic realm="private"')


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
