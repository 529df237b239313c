"""A proxy before a server that gets into trouble."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.serving import Quiet, serving

# Longer than the client waits (flows/record/server.py), so that a request may have been done all the same.
SLOW_SECONDS = 11
SLOW_REQUESTS = 10


@dataclass
class Trouble:
    """A proxy hands requests on to a server on the loopback; `how` is its trouble: slow for some requests, 500, garbage, or none."""

    port: int
    how: str = ""
    slow_requests: int = SLOW_REQUESTS
    address: str = ""


class _Proxy(Quiet):
    def __init__(self, trouble: Trouble, *connection: Any) -> None:
        self.trouble = trouble
        super().__init__(*connection)  # Answers.

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.trouble.how == "500":
            return self.reply(500, b"<h1>Internal Server Error</h1>", Content_Type="text/html")
        if self.trouble.how == "garbage":
            return self.reply(200, b"\x00\xff{]", Content_Type="application/json")
        if self.trouble.how == "slow" and self.trouble.slow_requests:
            self.trouble.slow_requests -= 1
            time.sleep(SLOW_SECONDS)
        headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        request = urllib.request.Request(f"http://127.0.0.1:{self.trouble.port}{self.path}", body or None, headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return self.reply(reply.status, reply.read(), Content_Type=reply.headers.get("Content-Type", ""))
        except urllib.error.HTTPError as error:
            return self.reply(error.code, error.read(), Content_Type=error.headers.get("Content-Type", ""))

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer


@contextmanager
def troubled(port: int) -> Iterator[Trouble]:
    trouble = Trouble(port)
    with serving(partial(_Proxy, trouble)) as host:
        trouble.address = f"http://{host}"
        yield trouble
