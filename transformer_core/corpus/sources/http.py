"""Downloads over http or https that continue after a broken connection, also in a later run.

`requests` reports a body that is shorter than announced. No library continues a file: pooch and fsspec begin it again.
"""

import os
import random
import re
import time
from pathlib import Path

import requests
from tqdm import tqdm
from urllib3.exceptions import HTTPError, LocationParseError

from transformer_core.errors import ExitCode, UserError, configuration_error, first_line

TRIES = 3
_CONNECT_SECONDS, _READ_SECONDS = 10, 30
_CHUNK_BYTES = 1 << 16
_REST, _NO_SUCH_REST = 206, 416
# Errors that a later try may not meet: timeout, no such range, too early, too many requests, errors of the server.
_TRANSIENT = frozenset({408, _NO_SUCH_REST, 425, 429, *range(500, 600)})
# Of a wrong address, redirect or proxy. `requests` lets urllib3's error through for a host that is no name: a..b.
_WRONG_ADDRESSES = (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL, requests.TooManyRedirects, LocationParseError)
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")


def download(url: str, path: Path, pause_seconds: float, otherwise: str) -> None:
    """Download the file at `url` to `path`.

    An incomplete file is kept as NAME.part, and its version (ETag or time) in NAME.version. The next try, also in a later call, requests
    the rest of that version. The server sends the whole file if its version is another by now, or if it has no versions or no ranges. The
    pause after a failed try is doubled after each further one that brings no new bytes, and varied by half. `otherwise` ends remedies.

    Raises `UserError`: 69 after `TRIES` failed tries in a row, of which at most the first has brought new bytes; 78 if the server refuses
    the request, or if the address, a redirection, the proxy or the certificates cannot be used.
    """
    part, version = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.version")
    most, failures = 0, 0
    while True:
        try:
            _fetch_rest(url, part, version)
            break
        except (OSError, HTTPError) as fault:  # A RequestException is an OSError without a number.
            if isinstance(fault, OSError) and fault.errno is not None:
                raise
            refused = isinstance(fault, requests.HTTPError) and fault.response.status_code not in _TRANSIENT
            if refused or isinstance(fault, _WRONG_ADDRESSES) or not isinstance(fault, requests.RequestException | HTTPError):
                remedy = f"Correct the address in the catalogue entry, or the proxy or certificates in the environment, or {otherwise}."
                raise configuration_error(f"{url}: {first_line(fault)}", remedy) from None
            size = part.stat().st_size if part.exists() else 0
            failures = 1 if size > most else failures + 1
            most = max(most, size)
            if failures == TRIES:
                words = "no connection" if type(fault) is requests.ConnectionError else first_line(fault)
                raise UserError(f"{url}: {words} ({TRIES} tries)", f"Try again, or {otherwise}.", ExitCode.UNAVAILABLE) from None
            time.sleep(pause_seconds * 2 ** (failures - 1) * random.uniform(0.5, 1.5))
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    version.unlink(missing_ok=True)


def _fetch_rest(url: str, part: Path, version: Path) -> None:
    """Request the rest and append it, or request the whole file if the part has no version. Returns only if the file is complete."""
    mark = version.read_text(encoding="utf-8") if version.exists() else ""
    size = part.stat().st_size if mark and part.exists() else 0
    # Identity: a server may compress the body, and ranges of it would not be ranges of the file.
    headers = {"Accept-Encoding": "identity"}
    if size:
        headers |= {"Range": f"bytes={size}-", "If-Range": mark}
    with requests.get(url, stream=True, timeout=(_CONNECT_SECONDS, _READ_SECONDS), headers=headers) as answer:
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        whole = int(found[2]) if found else 0
        if answer.status_code == _NO_SUCH_REST and size and whole == size:
            return
        goes_on = answer.status_code == _REST and found is not None and found[1] == str(size)
        if answer.status_code in (_REST, _NO_SUCH_REST) and not goes_on:
            version.unlink(missing_ok=True)  # The next try requests the whole file.
        answer.raise_for_status()
        if answer.status_code == _REST and not goes_on:
            raise requests.exceptions.InvalidHeader("another range than requested")
        with part.open("ab" if goes_on else "wb") as file:
            if not goes_on:
                size, whole = 0, answer.raw.length_remaining or 0
                etag = answer.headers.get("ETag", "")  # A weak one (W/"...") does not promise the same bytes.
                mark = etag if etag.startswith('"') else answer.headers.get("Last-Modified", "")
                version.write_text(mark, encoding="utf-8")
            try:
                with tqdm(initial=size, total=whole or None, unit="B", unit_scale=True, desc=part.stem, leave=False, disable=None) as bar:
                    # As sent: some servers mark a .gz file as compressed in transit, and `iter_content` would unpack it.
                    for chunk in answer.raw.stream(_CHUNK_BYTES, decode_content=False):
                        file.write(chunk)
                        bar.update(len(chunk))
            except BaseException:
                if not mark:  # The next request is for the whole file.
                    part.unlink()
                    version.unlink()
                raise
        if part.stat().st_size < whole:  # A server may send less than requested.
            raise requests.exceptions.ChunkedEncodingError(f"the answer ended before byte {whole:,}")
