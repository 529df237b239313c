"""Files from the network or the mirror, with their sums checked before they are read."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Literal
from urllib.parse import unquote, urlsplit

from transformer_core.corpus.sources.catalogue import OWN_ENTRIES
from transformer_core.corpus.sources.http import download
from transformer_core.errors import UserError, configuration_error, without_password
from transformer_core.files import read_json, sha256_of, write_json

MIRROR_VARIABLE = "TRANSFORMER_MIRROR"


@dataclass(frozen=True)
class Sum:
    """The expected sum of a file in hexadecimal, and the place that gives it."""

    digest: str
    algorithm: Literal["sha256", "md5"] = "sha256"
    given_in: str = "the catalogue entry"


@dataclass(frozen=True)
class Fetched:
    """A local file whose sum was checked where one is known."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Fetcher:
    """Fetches the files of one corpus.

    Args:
        corpus: the entry's name, also the folder of its files in the mirror.
        downloads: folder for downloaded files until the corpus is complete, so that a second run fetches only the missing ones.
        mirror: a folder with MIRROR/CORPUS/FILENAME, used instead of the network.
        lock: a file of sums by address, without passwords, for files without a published sum: the first fetch writes it, later ones must
            match.
        pause_seconds: see `http.download`.
    """

    corpus: str
    downloads: Path
    mirror: Path | None = None
    lock: Path | None = None
    pause_seconds: float = 1.0

    def fetch(self, url: str, published: Sum | None = None) -> Fetched:
        """Get the file at `url` from the mirror, from an earlier run, or from the network.

        Raises:
            UserError: exit code 65 for a sum other than the published or the locked one; 69 if the network or the server is unavailable
                after the last try; 78 if the server does not have the file.
        """
        locked, address = locked_sums(self.lock) if self.lock is not None else {}, without_password(url)
        expected = published or (Sum(locked[address], given_in=str(self.lock)) if address in locked else None)
        fetched = self._fetch(url, published, expected)
        if expected is None and self.lock is not None:
            write_json(self.lock, dict(sorted({**locked, address: fetched.sha256}.items())))
        return fetched

    def _fetch(self, url: str, published: Sum | None, expected: Sum | None) -> Fetched:
        name = PurePosixPath(unquote(urlsplit(url).path)).name  # In this order, or an escaped slash could leave the folder.
        mirrored = self.mirror and self.mirror / self.corpus / name
        if mirrored and mirrored.is_file():
            return check_sum(mirrored, expected)
        # Two addresses may end in the same name, and the sum of one may have been corrected since.
        key = hashlib.sha256(f"{url} {published}".encode()).hexdigest()[:8]
        downloaded = self.downloads / self.corpus / f"{key}-{name}"
        if downloaded.is_file():
            return check_sum(downloaded, expected)
        arrived = downloaded.with_name(f"{downloaded.name}.unchecked")
        arrived.parent.mkdir(parents=True, exist_ok=True)
        where = f"{self.mirror or 'MIRROR'}/{self.corpus}/{name}"
        download(url, arrived, self.pause_seconds, remedy=f"Try again, or put the file at {where} and set machine.mirror.")
        try:
            fetched = check_sum(arrived, expected, name=url)
        except UserError:
            arrived.unlink()
            raise
        arrived.replace(downloaded)
        return Fetched(downloaded, fetched.sha256)

    def scratch(self) -> TemporaryDirectory[str]:
        """Return a temporary folder beside the downloads, for extracting archives."""
        self.downloads.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(dir=self.downloads)


def lock_file(corpus: str, entries: Path = OWN_ENTRIES) -> Path:
    """Return the path of the file with the locked sums of a corpus."""
    return entries / f"{corpus}.lock"


def locked_sums(lock: Path) -> dict[str, str]:
    """Return the locked SHA-256 sums by address. Raises `UserError`: not JSON (65), or other JSON than sums by address (78)."""
    remedy = "Correct it, or remove it to lock the sums of the next download."
    sums = read_json(lock, remedy) if lock.exists() else {}
    if not (isinstance(sums, dict) and all(isinstance(one, str) for one in sums.values())):
        raise configuration_error(f"{lock}: must be an object with a sum for each address", remedy)
    return sums


def mirror_folder(setting: str | None) -> Path | None:
    """Return the mirror: $TRANSFORMER_MIRROR, else `machine.mirror`, else None. Raises `UserError` (78): it is not a folder."""
    variable = os.environ.get(MIRROR_VARIABLE)
    named = variable or setting
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        origin = f"${MIRROR_VARIABLE}" if variable else "machine.mirror"
        raise configuration_error(f"{origin}: no folder {named}", "Name one with CORPUS/FILENAME, or none.")
    return folder


def check_sum(path: Path, expected: Sum | None, name: str = "") -> Fetched:
    """Check the sum of a local file; messages call it `name`, or its path. Raises `UserError` (65): its sum is not the expected one."""
    sha256 = sha256_of(path)
    if expected:
        with path.open("rb") as file:
            found = sha256 if expected.algorithm == "sha256" else hashlib.file_digest(file, expected.algorithm).hexdigest()
        if found != expected.digest:
            raise UserError(
                f"{name or path}: wrong {expected.algorithm}: wanted {expected.digest}, found {found}",
                f"The file was changed or damaged: get it again, or correct the sum in {expected.given_in}.",
            )
    return Fetched(path, sha256)
