"""Files from the network or the mirror, each with its sum checked before anybody reads it.

`requests` and not the standard library: it takes a body that is shorter than announced for the error it is, verifies certificates where
Python finds no store of its own, and mtdata brings it anyway.
"""

import hashlib
import os
import random
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Literal
from urllib.parse import unquote, urlsplit

import requests
from tqdm import tqdm

from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.files import new_file, sha256_of

MIRROR_VARIABLE = "TRANSFORMER_MIRROR"
TRIES = 3
_CONNECT_SECONDS, _READ_SECONDS = 10, 30
_CHUNK_BYTES = 1 << 20
# Too early, too busy: what a server says of itself at the moment, not of the file.
_PASSING = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Sum:
    """What a file's bytes must sum up to, in hexadecimal."""

    digest: str
    algorithm: Literal["sha256", "md5"] = "sha256"


@dataclass(frozen=True)
class Fetched:
    """A file that is here and whose sum was checked where one is known."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Fetcher:
    """Fetches the files of one corpus.

    Args:
        corpus: the entry's name, also the folder of its files in the mirror.
        downloads: where downloaded files lie until the corpus is complete, so that a second try fetches only what is missing.
        mirror: a folder with MIRROR/CORPUS/FILENAME, taken instead of the network.
        pause_seconds: before the second try; doubled before each further one, and varied by half so that many clients spread out.
    """

    corpus: str
    downloads: Path
    mirror: Path | None = None
    pause_seconds: float = 1.0

    def fetch(self, url: str, expected: Sum | None = None) -> Fetched:
        """The file at `url`: from the mirror, from an earlier try, or from the network.

        Raises:
            UserError: exit code 65 for a wrong sum; 69 when the network or the server is away after the last try; 78 when the server
                does not have the file.
        """
        name = PurePosixPath(unquote(urlsplit(url).path)).name  # in this order, or an escaped slash would leave the folder
        mirrored = self.mirror and self.mirror / self.corpus / name
        if mirrored and mirrored.is_file():
            return check_sum(mirrored, expected)
        # Two addresses may end in the same name, and the sum of one may have been mended since.
        key = hashlib.sha256(f"{url} {expected}".encode()).hexdigest()[:8]
        downloaded = self.downloads / self.corpus / f"{key}-{name}"
        if downloaded.is_file():
            return check_sum(downloaded, expected)
        with new_file(downloaded) as temporary:
            found = self._download(url, temporary, name, expected)
            if expected and found[expected.algorithm] != expected.digest:
                raise wrong_sum(url, expected, found[expected.algorithm])
        return Fetched(downloaded, found["sha256"])

    def scratch(self) -> TemporaryDirectory[str]:
        """A folder for unpacking, beside the downloads, that goes when its `with` block ends."""
        self.downloads.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(dir=self.downloads)

    def _download(self, url: str, path: Path, name: str, expected: Sum | None) -> Mapping[str, str]:
        """Stream `url` to `path`, trying again what may pass; returns the sums of its bytes by algorithm."""
        algorithms = ["sha256", *([expected.algorithm] if expected else [])]
        fault: requests.RequestException
        for attempt in range(TRIES):
            if attempt:
                time.sleep(self.pause_seconds * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))
            try:
                with path.open("wb") as file:
                    return _stream(url, file, algorithms)
            except requests.HTTPError as error:
                status = error.response.status_code
                if status < 500 and status not in _PASSING:
                    raise configuration_error(f"{url}: {error}", "Mend the address in the catalogue entry.") from None
                fault = error
            except requests.RequestException as error:
                fault = error
        where = f"{self.mirror or 'MIRROR'}/{self.corpus}/{name}"
        remedy = f"Try again, or put the file at {where} and set machine.mirror."
        raise UserError(f"{url}: {_in_short(fault)} ({TRIES} tries)", remedy, ExitCode.UNAVAILABLE) from None


def mirror_folder(setting: str | None) -> Path | None:
    """The mirror: $TRANSFORMER_MIRROR, else `machine.mirror`, else none.

    Raises:
        UserError: exit code 78; it is no folder.
    """
    variable = os.environ.get(MIRROR_VARIABLE)
    named = variable or setting
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        origin = f"${MIRROR_VARIABLE}" if variable else "machine.mirror"
        raise configuration_error(f"{origin}: no folder {named}", "Name one that holds CORPUS/FILENAME, or none.")
    return folder


def check_sum(path: Path, expected: Sum | None) -> Fetched:
    """A file that is here already.

    Raises:
        UserError: exit code 65; its sum is not the expected one.
    """
    found = Fetched(path, sha256_of(path))
    if expected:
        digest = found.sha256 if expected.algorithm == "sha256" else _digest_of(path, expected.algorithm)
        if digest != expected.digest:
            raise wrong_sum(str(path), expected, digest)
    return found


def wrong_sum(name: str, expected: Sum, found: str) -> UserError:
    """The error for a file whose bytes are not those that the catalogue means."""
    return UserError(
        f"{name}: wrong {expected.algorithm}: wanted {expected.digest}, found {found}",
        "The file was changed or damaged: get it again, or mend the sum in the catalogue entry.",
    )


def _stream(url: str, file: IO[bytes], algorithms: Iterable[str]) -> dict[str, str]:
    # Identity: a server that gzips on the fly would give other bytes than the file's.
    answer = requests.get(url, stream=True, timeout=(_CONNECT_SECONDS, _READ_SECONDS), headers={"Accept-Encoding": "identity"})
    with closing(answer):
        answer.raise_for_status()
        sums = {algorithm: hashlib.new(algorithm) for algorithm in algorithms}
        size_bytes = int(answer.headers.get("Content-Length", 0)) or None
        # disable=None: no bar where there is no terminal.
        with tqdm(total=size_bytes, unit="B", unit_scale=True, desc=url.rsplit("/", 1)[-1], leave=False, disable=None) as bar:
            for chunk in answer.iter_content(_CHUNK_BYTES):
                file.write(chunk)
                bar.update(len(chunk))
                for digest in sums.values():
                    digest.update(chunk)
    return {algorithm: digest.hexdigest() for algorithm, digest in sums.items()}


def _digest_of(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


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
