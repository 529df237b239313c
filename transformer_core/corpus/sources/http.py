"""Downloads over http or https that continue after the connection breaks.

`requests` instead of the standard library: it reports a body that is shorter than announced, follows the proxies of the environment,
verifies certificates where Python finds no store of its own, and is a dependency of mtdata anyway.
"""

import os
import random
import time
from contextlib import closing
from pathlib import Path

import requests
from tqdm import tqdm

from transformer_core.errors import ExitCode, UserError, configuration_error

TRIES = 3
_CONNECT_SECONDS, _READ_SECONDS = 10, 30
_CHUNK_BYTES = 1 << 16
_OK, _REST, _NO_SUCH_REST = 200, 206, 416
# Too early, too busy, no such range: about the server or our request at this moment, not about the file.
_TRANSIENT = frozenset({408, _NO_SUCH_REST, 425, 429, *range(500, 600)})
# Of the catalogue, or of a server that redirects to it: only http and https are fetched.
_WRONG_ADDRESSES = (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL, requests.TooManyRedirects)
# The first match counts: an SSLError is a ConnectionError too.
_FAULTS = {
    requests.Timeout: "no answer in time",
    requests.exceptions.SSLError: "the certificate could not be verified",
    requests.exceptions.ChunkedEncodingError: "the connection broke",
    requests.ConnectionError: "no connection",
}


def download(url: str, path: Path, pause_seconds: float, remedy: str) -> None:
    """Download the file at `url` to `path`.

    An incomplete file is kept as NAME.part, with its version (ETag or time) in NAME.version. The next try, also in a later call, requests
    the rest of that version. A server with another version by now, without versions, or without ranges sends all from the start.

    Args:
        pause_seconds: before the second try in a row without new bytes; doubled before each further one, and varied by half so that many
            clients spread out.
        remedy: of the error 69.

    Raises:
        UserError: exit code 69 after `TRIES` tries in a row without new bytes; 78 if the server does not have the file, or
            redirects to a scheme other than http and https.
    """
    part = _Part(path)
    most, failures = 0, 0
    while True:
        try:
            part.fetch_rest(url)
            break
        except requests.RequestException as fault:
            refused = isinstance(fault, requests.HTTPError) and fault.response.status_code not in _TRANSIENT
            if refused or isinstance(fault, _WRONG_ADDRESSES):
                raise configuration_error(f"{url}: {fault}", "Correct the address in the catalogue entry.") from None
            failures = 1 if part.size > most else failures + 1
            most = max(most, part.size)
            if failures == TRIES:
                raise UserError(f"{url}: {_summary(fault)} ({TRIES} tries)", remedy, ExitCode.UNAVAILABLE) from None
            time.sleep(pause_seconds * 2 ** (failures - 1) * random.uniform(0.5, 1.5))
    part.finish()


class _Part:
    """The part of a file that is here, and the version that it belongs to."""

    def __init__(self, path: Path) -> None:
        self._whole = path
        self._path = path.with_name(f"{path.name}.part")
        self._version = path.with_name(f"{path.name}.version")

    @property
    def size(self) -> int:
        """Number of bytes that are here."""
        return self._path.stat().st_size if self._path.exists() else 0

    def fetch_rest(self, url: str) -> None:
        """Request the rest and append it, or all of it if the part is of no use; return only when the file is complete."""
        # Identity: a server that compresses on the fly would send other bytes than the file's.
        headers = {"Accept-Encoding": "identity"}
        if self.size and self._version.exists():
            headers |= {"Range": f"bytes={self.size}-", "If-Range": self._version.read_text(encoding="utf-8")}
        with closing(requests.get(url, stream=True, timeout=(_CONNECT_SECONDS, _READ_SECONDS), headers=headers)) as answer:
            if answer.status_code == _NO_SUCH_REST:
                if answer.headers.get("Content-Range") == f"bytes */{self.size}":
                    return  # Complete, but not renamed yet.
                self._path.unlink(missing_ok=True)
            answer.raise_for_status()
            goes_on = answer.status_code == _REST and answer.headers.get("Content-Range", "").startswith(f"bytes {self.size}-")
            if answer.status_code != _OK and not goes_on:
                self._path.unlink(missing_ok=True)
                raise requests.exceptions.InvalidHeader(f"{answer.status_code} with another range than requested")
            if not goes_on:
                self._begin(answer)
            self._append(answer, self._whole.name)
            whole = answer.headers.get("Content-Range", "").rpartition("/")[2] if goes_on else ""
            if whole.isdecimal() and self.size < int(whole):  # A server may send less than requested.
                raise requests.exceptions.ChunkedEncodingError(f"{self.size:,} of {int(whole):,} bytes")

    def _begin(self, answer: requests.Response) -> None:
        """Remove the part and store the version of the new one; a weak ETag ("W/...") does not promise the same bytes."""
        self._path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)
        etag = answer.headers.get("ETag", "")
        version = etag if etag.startswith('"') else answer.headers.get("Last-Modified", "")
        if version:
            self._version.write_text(version, encoding="utf-8")

    def _append(self, answer: requests.Response, name: str) -> None:
        length = answer.headers.get("Content-Length", "")
        rest = int(length) if length.isdecimal() and len(length) < 20 else 0
        total = self.size + rest if rest else None
        # disable=None: no bar where there is no terminal.
        bar = tqdm(initial=self.size, total=total, unit="B", unit_scale=True, desc=name, leave=False, disable=None)
        with self._path.open("ab") as file, bar:
            for chunk in answer.iter_content(_CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))

    def finish(self) -> None:
        """Rename the file once its bytes are on disk."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        self._path.replace(self._whole)
        self._version.unlink(missing_ok=True)


def _summary(fault: requests.RequestException) -> str:
    if isinstance(fault, requests.HTTPError):
        return str(fault).split(" for url:")[0]
    return next((words for kind, words in _FAULTS.items() if isinstance(fault, kind)), f"{type(fault).__name__}: {fault}")
