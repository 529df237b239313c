"""Files from the network or the mirror, each with its sum checked before anybody reads it."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Literal
from urllib.parse import unquote, urlsplit

from transformer_core.corpus.catalogue import OWN_ENTRIES
from transformer_core.corpus.http import download
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import read_json, sha256_of, write_json

MIRROR_VARIABLE = "TRANSFORMER_MIRROR"


@dataclass(frozen=True)
class Sum:
    """What a file's bytes must sum up to, in hexadecimal, and where that is written."""

    digest: str
    algorithm: Literal["sha256", "md5"] = "sha256"
    stands_in: str = "the catalogue entry"


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
        lock: a file of sums by address, kept for files whose sum nobody publishes: the first fetch writes it, later ones must match.
        pause_seconds: before the second try; doubled before each further one, and varied by half so that many clients spread out.
    """

    corpus: str
    downloads: Path
    mirror: Path | None = None
    lock: Path | None = None
    pause_seconds: float = 1.0

    def fetch(self, url: str, published: Sum | None = None) -> Fetched:
        """The file at `url`: from the mirror, from an earlier try, or from the network.

        Raises:
            UserError: exit code 65 for a sum other than the published or the locked one; 69 when the network or the server is away after
                the last try; 78 when the server does not have the file.
        """
        locked = locked_sums(self.lock) if self.lock is not None else {}
        expected = published or (Sum(locked[url], stands_in=str(self.lock)) if url in locked else None)
        fetched = self._fetch(url, published, expected)
        if expected is None and self.lock is not None:
            write_json(self.lock, dict(sorted({**locked, url: fetched.sha256}.items())))
        return fetched

    def _fetch(self, url: str, published: Sum | None, expected: Sum | None) -> Fetched:
        name = PurePosixPath(unquote(urlsplit(url).path)).name  # in this order, or an escaped slash would leave the folder
        mirrored = self.mirror and self.mirror / self.corpus / name
        if mirrored and mirrored.is_file():
            return check_sum(mirrored, expected)
        # Two addresses may end in the same name, and the sum of one may have been mended since.
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
        """A folder for unpacking, beside the downloads, that goes when its `with` block ends."""
        self.downloads.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(dir=self.downloads)


def lock_file(corpus: str, entries: Path = OWN_ENTRIES) -> Path:
    """Where the sums of a corpus are kept that nobody publishes."""
    return entries / f"{corpus}.lock"


def locked_sums(lock: Path) -> dict[str, str]:
    """SHA-256 sums by address; none where nothing has been locked yet.

    Raises:
        UserError: exit code 78; the file is not JSON.
    """
    try:
        return dict(read_json(lock)) if lock.exists() else {}
    except ValueError:
        raise configuration_error(f"{lock}: not valid JSON", "Mend it, or remove it to lock the sums that are found next.") from None


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


def check_sum(path: Path, expected: Sum | None, name: str = "") -> Fetched:
    """A file that is here; `name` is what a message calls it, its path where none is given.

    Raises:
        UserError: exit code 65; its sum is not the expected one.
    """
    fetched = Fetched(path, sha256_of(path))
    if expected:
        digest = fetched.sha256 if expected.algorithm == "sha256" else _digest_of(path, expected.algorithm)
        if digest != expected.digest:
            raise UserError(
                f"{name or path}: wrong {expected.algorithm}: wanted {expected.digest}, found {digest}",
                f"The file was changed or damaged: get it again, or mend the sum in {expected.stands_in}.",
            )
    return fetched


def _digest_of(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
