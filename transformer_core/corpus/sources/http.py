"""Downloads over http or https that continue after a broken connection.

`requests` is used instead of the standard library because it reports a body that is shorter than announced and brings its own certificates.
mtdata depends on it anyway.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import requests
from requests.utils import get_environ_proxies, select_proxy
from tqdm import tqdm
from urllib3.exceptions import HTTPError, LocationParseError, ReadTimeoutError
from urllib3.util import parse_url

from transformer_core.errors import ExitCode, UserError, configuration_error

TRIES = 3
_CONNECT_SECONDS, _READ_SECONDS = 10, 30
_CHUNK_BYTES = 1 << 16
_OK, _REST, _NO_SUCH_REST = 200, 206, 416
# Errors that a later try may not meet: timeout, no such range, too early, too many requests, errors of the server.
_TRANSIENT = frozenset({408, _NO_SUCH_REST, 425, 429, *range(500, 600)})
# Addresses that are wrong in the catalogue or in a server's redirect: only http and https are fetched.
# `requests` lets urllib3's own error through for a host that is no name: a..b.
_WRONG_ADDRESSES = (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL, requests.TooManyRedirects, LocationParseError)
# The first match is used: an SSLError is a ConnectionError too.
_FAULTS = {
    requests.Timeout: "no answer in time",
    requests.exceptions.SSLError: "the certificate could not be verified",
    requests.exceptions.ChunkedEncodingError: "the connection broke",
    requests.ConnectionError: "no connection",
}


def download(url: str, path: Path, pause_seconds: float, otherwise: str) -> None:
    """Download the file at `url` to `path`.

    An incomplete file is kept as NAME.part, and its version (ETag or time) in NAME.version. The next try, also in a later call, requests
    the rest of that version. The server sends the whole file if its version is another by now, or if it has no versions or no ranges.

    Args:
        pause_seconds: pause after a failed try, doubled after each further one that brings no new bytes, and varied by half so that many
            clients spread out.
        otherwise: what to do without the network, the second half of remedies.

    Raises:
        UserError: exit code 69 after `TRIES` failed tries in a row, of which at most the first has brought new bytes; 78 if the server
            refuses the request (it does not have the file, for example) or redirects to a scheme other than http and https, or if the
            environment names a proxy or certificates that cannot be used.
    """
    part = _Part(path)
    most, failures = 0, 0
    while True:
        try:
            part.fetch_rest(url)
            break
        except (requests.RequestException, LocationParseError) as fault:
            if proxy := _wrong_proxy(url, fault):
                remedy = f"Correct the proxy in the environment ({urlsplit(url).scheme}_proxy or all_proxy), for example http://HOST:PORT."
                raise configuration_error(f"{url}: {proxy}: not a proxy that can be used", remedy) from None
            refused = isinstance(fault, requests.HTTPError) and fault.response.status_code not in _TRANSIENT
            if refused or isinstance(fault, _WRONG_ADDRESSES):
                raise configuration_error(f"{url}: {fault}", f"Correct the address in the catalogue entry, or {otherwise}.") from None
            failures = 1 if part.size > most else failures + 1
            most = max(most, part.size)
            if failures == TRIES:
                raise UserError(f"{url}: {_summary(fault)} ({TRIES} tries)", f"Try again, or {otherwise}.", ExitCode.UNAVAILABLE) from None
            time.sleep(pause_seconds * 2 ** (failures - 1) * random.uniform(0.5, 1.5))
        except OSError as fault:
            if fault.errno is not None:
                raise
            # `requests` raises this for a file of certificates that is missing.
            raise configuration_error(f"{url}: {fault}", "Correct REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE in the environment.") from None
    part.finish()


def _wrong_proxy(url: str, fault: Exception) -> str:
    """Return the proxy for an address if it is the cause of a fault; `requests` raises the same errors for a proxy and for a redirect."""
    proxy = select_proxy(url, get_environ_proxies(url))
    if not proxy or not isinstance(fault, _WRONG_ADDRESSES):
        return ""
    named = proxy if "://" in proxy else f"http://{proxy}"  # With a scheme, so that its password is not printed.
    try:
        parts = parse_url(named)
        usable = parts.scheme in ("http", "https") and bool((parts.host or "").encode("idna"))
    except (LocationParseError, UnicodeError):
        usable = False
    return "" if usable else named


class _Part:
    """The downloaded part of a file, and its version."""

    def __init__(self, path: Path) -> None:
        self._whole = path
        self._path = path.with_name(f"{path.name}.part")
        self._version = path.with_name(f"{path.name}.version")

    @property
    def size(self) -> int:
        """Number of bytes of the part."""
        return self._path.stat().st_size if self._path.exists() else 0

    def fetch_rest(self, url: str) -> None:
        """Request the rest and append it, or request the whole file if the part is of no use. Returns only if the file is complete."""
        # Identity: a server may compress the body, and ranges of it would not be ranges of the file.
        headers = {"Accept-Encoding": "identity"}
        if self.size and self._version.exists():
            headers |= {"Range": f"bytes={self.size}-", "If-Range": self._version.read_text(encoding="utf-8")}
        with closing(requests.get(url, stream=True, timeout=(_CONNECT_SECONDS, _READ_SECONDS), headers=headers)) as answer:
            if answer.status_code == _NO_SUCH_REST:
                if answer.headers.get("Content-Range") == f"bytes */{self.size}":
                    return  # The part is complete.
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
        """Remove the part, and store the version of the new one. A weak ETag ("W/...") is not used: it does not promise the same bytes."""
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
        bar = tqdm(initial=self.size, total=total, unit="B", unit_scale=True, desc=name, leave=False, disable=None)
        with self._path.open("ab") as file, bar:
            for chunk in _content(answer):
                file.write(chunk)
                bar.update(len(chunk))

    def finish(self) -> None:
        """Sync the part to disk and rename it to the file."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        self._path.replace(self._whole)
        self._version.unlink(missing_ok=True)


def _content(answer: requests.Response) -> Iterator[bytes]:
    """Yield the body as it was sent: some servers mark a .gz file as compressed in transit, and `iter_content` would unpack it."""
    try:
        yield from answer.raw.stream(_CHUNK_BYTES, decode_content=False)
    except ReadTimeoutError as error:
        raise requests.ReadTimeout(error) from None
    except HTTPError as error:
        raise requests.exceptions.ChunkedEncodingError(error) from None


def _summary(fault: Exception) -> str:
    if isinstance(fault, requests.HTTPError):
        return str(fault).split(" for url:")[0]
    return next((words for kind, words in _FAULTS.items() if isinstance(fault, kind)), f"{type(fault).__name__}: {fault}")
