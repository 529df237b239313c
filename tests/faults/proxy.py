"""A proxy before a server that gets into trouble."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

# Longer than the client waits (flows/record/server.py), so that a request may have been done all the same.
SLOW_SECONDS = 11
SLOW_REQUESTS = 10


class Trouble(ThreadingHTTPServer):
    """Hands requests on to a server on the loopback; `how` is its trouble: slow for some requests, 500, garbage, or none."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Proxy)
        self.behind = f"http://127.0.0.1:{port}"
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.how = ""
        self.slow_requests = SLOW_REQUESTS


class _Proxy(BaseHTTPRequestHandler):
    server: Trouble

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.how == "500":
            return self.send(500, "text/html", b"<h1>Internal Server Error</h1>")
        if self.server.how == "garbage":
            return self.send(200, "application/json", b"\x00\xff{]")
        if self.server.how == "slow" and self.server.slow_requests:
            self.server.slow_requests -= 1
            time.sleep(SLOW_SECONDS)
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        request = urllib.request.Request(self.server.behind + self.path, body or None, headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return self.send(reply.status, reply.headers.get("Content-Type", ""), reply.read())
        except urllib.error.HTTPError as error:
            return self.send(error.code, error.headers.get("Content-Type", ""), error.read())

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer

    def send(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        del format, arguments


@contextmanager
def troubled(port: int) -> Iterator[Trouble]:
    with Trouble(port) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
