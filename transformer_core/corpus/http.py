"""One file over http or https, however often the connection breaks on the way.

`requests` and not the standard library: it takes a body that is shorter than announced for the error it is, follows the proxies that the
environment names, verifies certificates where Python finds no store of its own, and mtdata brings it anyway.
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
# Too early, too busy, no such range: what a server says of itself or of our part at the moment, not of the file.
_PASSING = frozenset({408, _NO_SUCH_REST, 425, 429})


def download(url: str, path: Path, pause_seconds: float, remedy: str) -> None:
    """Bring the file at `url` to `path`.

    What has come stands beside it as NAME.part with the mark of its version in NAME.version; the next try, also that of a later call, asks
    for the rest of that version. A server that has another by now, marks none, or gives no parts sends all from the start.

    Args:
        pause_seconds: before the second try in a row that brought nothing new; doubled before each further one, and varied by half so that
            many clients spread out.
        remedy: what to do where nothing helps.

    Raises:
        UserError: exit code 69 after `TRIES` tries in a row that brought nothing new; 78 when the server does not have the file.
    """
    part = _Part(path)
    most, failures = 0, 0
    while True:
        try:
            part.fetch_rest(url)
            break
        except requests.RequestException as fault:
            _check_address(url, fault)
            failures = 1 if part.size > most else failures + 1
            most = max(most, part.size)
            if failures == TRIES:
                raise UserError(f"{url}: {_in_short(fault)} ({TRIES} tries)", remedy, ExitCode.UNAVAILABLE) from None
            time.sleep(pause_seconds * 2 ** (failures - 1) * random.uniform(0.5, 1.5))
    part.becomes_whole()


class _Part:
    """What has come of a file so far, and of which version of it."""

    def __init__(self, path: Path) -> None:
        self._whole = path
        self._path = path.with_name(f"{path.name}.part")
        self._version = path.with_name(f"{path.name}.version")

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self._path.stat().st_size if self._path.exists() else 0

    def fetch_rest(self, url: str) -> None:
        """Ask for what is missing and append it, or for all where a part is of no use; returns only with the whole file."""
        # Identity: a server that gzips on the fly would give other bytes than the file's.
        headers = {"Accept-Encoding": "identity"}
        if self.size and self._version.exists():
            headers |= {"Range": f"bytes={self.size}-", "If-Range": self._version.read_text(encoding="utf-8")}
        with closing(requests.get(url, stream=True, timeout=(_CONNECT_SECONDS, _READ_SECONDS), headers=headers)) as answer:
            if answer.status_code == _NO_SUCH_REST:
                if answer.headers.get("Content-Range") == f"bytes */{self.size}":
                    return  # All was here, only the name was not.
                self._path.unlink(missing_ok=True)
            answer.raise_for_status()
            goes_on = answer.status_code == _REST and answer.headers.get("Content-Range", "").startswith(f"bytes {self.size}-")
            if answer.status_code != _OK and not goes_on:
                self._path.unlink(missing_ok=True)
                raise requests.exceptions.InvalidHeader(f"{answer.status_code} with another part than was asked for")
            if not goes_on:
                self._begin(answer)
            self._append(answer, url.rsplit("/", 1)[-1])
            whole = answer.headers.get("Content-Range", "").rpartition("/")[2] if goes_on else ""
            if whole.isdecimal() and self.size < int(whole):  # A server may give less than was asked for.
                raise requests.exceptions.ChunkedEncodingError(f"{self.size:,} of {int(whole):,} bytes")

    def _begin(self, answer: requests.Response) -> None:
        """Forget what is here and note the version of what comes; a weak mark ("W/...") does not promise the same bytes."""
        self._path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)
        mark = answer.headers.get("ETag", "")
        version = mark if mark.startswith('"') else answer.headers.get("Last-Modified", "")
        if version:
            self._version.write_text(version, encoding="utf-8")

    def _append(self, answer: requests.Response, name: str) -> None:
        rest = int(answer.headers.get("Content-Length", 0))
        total = self.size + rest if rest else None
        # disable=None: no bar where there is no terminal.
        bar = tqdm(initial=self.size, total=total, unit="B", unit_scale=True, desc=name, leave=False, disable=None)
        with self._path.open("ab") as file, bar:
            for chunk in answer.iter_content(_CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))

    def becomes_whole(self) -> None:
        """Give the file its name, once its bytes are on disk."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        self._path.replace(self._whole)
        self._version.unlink(missing_ok=True)


def _check_address(url: str, fault: requests.RequestException) -> None:
    if isinstance(fault, requests.HTTPError):
        status = fault.response.status_code
        if status < 500 and status not in _PASSING:
            raise configuration_error(f"{url}: {fault}", "Mend the address in the catalogue entry.") from None


def _in_short(fault: requests.RequestException) -> str:
    if isinstance(fault, requests.HTTPError):
        return str(fault).split(" for url:")[0]
    if isinstance(fault, requests.Timeout):
        return "no answer in time"
    if isinstance(fault, requests.exceptions.SSLError):
        return "the certificate could not be verified"
    if isinstance(fault, requests.exceptions.ChunkedEncodingError):
        return "the connection broke"
    if isinstance(fault, requests.ConnectionError):
        return "no connection"
    return f"{type(fault).__name__}: {fault}"
