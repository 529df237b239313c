"""Files from the network or from a mirror. Their sums are checked before they are read."""

import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from transformer_core.corpus.sources.catalogue import OWN_ENTRIES
from transformer_core.corpus.sources.http import download
from transformer_core.errors import UserError, configuration_error, without_logins
from transformer_core.files import read_json, repository, sha256_of, write_json

MIRROR_VARIABLE = "TRANSFORMER_MIRROR"
_SCRATCH = ".unpacked-"  # Temporary folders, beside the folders that corpora name.


class Sum(NamedTuple):
    """The expected sum of a file in hexadecimal, and the place where it is given, for messages."""

    digest: str
    algorithm: Literal["sha256", "md5"] = "sha256"
    given_in: str = "the catalogue entry"


class Fetched(NamedTuple):
    """A local file and its SHA-256, which was compared with the expected sum if there is one."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Fetcher:
    """A source of the files of one corpus: mirror, earlier downloads, network, in this order.

    Args:
        corpus: the entry's name, and the name of its folder in the mirror.
        downloads: folder that keeps downloaded files until the corpus is complete, so that a second run fetches only the missing ones.
        mirror: folder with files at MIRROR/CORPUS/FILENAME or, for any address, MIRROR/CORPUS/`name_of_address`.
        lock: JSON file of SHA-256 sums by address (without passwords), for files without a published sum. `write_locks` writes the sum of
            a file that was fetched first, later ones must match it.
        pause_seconds: see `http.download`.
        new_sums: sums by lock and address that `write_locks` will write; a fetcher made from this one by `replace` adds its own.
        mirrored: the address that a file of the mirror was taken for, by path: a second address of the same file name does not take it.
    """

    corpus: str
    downloads: Path
    mirror: Path | None = None
    lock: Path | None = None
    pause_seconds: float = 1.0
    new_sums: dict[Path, dict[str, str]] = field(default_factory=dict)
    mirrored: dict[Path, str] = field(default_factory=dict)

    def fetch(self, url: str, published: Sum | None = None) -> Fetched:
        """Return the file at `url`. Raises `UserError`: 65, not the published or locked sum; 69, 78 as `download`; 78, an invalid lock."""
        address, folder = without_logins(url), (self.mirror or Path("MIRROR")) / self.corpus
        expected = published or self._locked(address)
        paths = [folder / name_of_address(url), folder / file_name(url)]
        free = [path for path in paths if self.mirrored.get(path, address) == address]
        here = next((path for path in free if self.mirror and path.is_file()), None)
        if here:
            self.mirrored[here] = address
        fetched = check_sum(here, expected) if here else self._downloaded(url, expected, free[-1])
        if expected is None:
            self._lock(address, fetched.sha256)
        return fetched

    def check_locked(self, name: str, sha256: str) -> None:
        """Compare the sum of what a name stands for, such as a model of the registry, with the locked one; the first sum is locked later.

        Raises `UserError`: 65; the sum is another one. 78; the lock is not valid.
        """
        expected = self._locked(name)
        if expected and expected.digest != sha256:
            fault = f"{name}: has changed since its first use: expected sha256 {expected.digest}, found {sha256}"
            raise UserError(fault, f"To use the new one, remove its line from {self.lock}.")
        if expected is None:
            self._lock(name, sha256)

    def _locked(self, address: str) -> Sum | None:
        digest = locked_sums(self.lock).get(address) if self.lock is not None else None
        return Sum(digest, given_in=str(self.lock)) if digest else None

    def _lock(self, address: str, sha256: str) -> None:
        if self.lock is not None:
            self.new_sums.setdefault(self.lock, {})[address] = sha256

    def write_locks(self) -> None:
        """Lock the sums that were not known, once all files have been read: before that, a file may be a server's page about an error."""
        for lock, sums in self.new_sums.items():
            write_json(lock, dict(sorted({**locked_sums(lock), **sums}.items())))
        self.new_sums.clear()

    def _downloaded(self, url: str, expected: Sum | None, in_mirror: Path) -> Fetched:
        path = self.downloads / self.corpus / name_of_address(url)  # Two addresses may end in the same name.
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            download(url, path, self.pause_seconds, otherwise=f"put the file at {in_mirror} and set machine.mirror")
        try:
            return check_sum(path, expected, name=url)
        except UserError:
            path.unlink()
            raise

    def scratch(self) -> TemporaryDirectory[str]:
        """Return a temporary folder beside the downloads, for extracting archives."""
        self.downloads.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(dir=self.downloads, prefix=_SCRATCH)

    def remove_scratch(self) -> None:
        """Remove the temporary folders that killed processes have left. No other process may use one."""
        for folder in self.downloads.glob(f"{_SCRATCH}*"):
            shutil.rmtree(folder)


def file_name(url: str) -> str:
    """Return the last part of an address, the name of its file."""
    return PurePosixPath(unquote(urlsplit(url).path)).name  # Unquoted first: with an escaped slash, a name could leave the folder.


def name_of_address(url: str) -> str:
    """Return the name that only this address has in the mirror: 8 digits of the SHA-256 of the address (without a password), file name."""
    return f"{hashlib.sha256(without_logins(url).encode()).hexdigest()[:8]}-{file_name(url)}"


def lock_file(corpus: str) -> Path:
    """Return the path of the lock of a corpus."""
    return OWN_ENTRIES / f"{corpus}.lock"


def locked_sums(lock: Path) -> dict[str, str]:
    """Return the locked SHA-256 sums by address. Raises `UserError`: not JSON (65), or other JSON than sums by address (78)."""
    remedy = "Correct it, or remove it to lock the sums of the next download."
    sums = read_json(lock, remedy) if lock.exists() else {}
    if not (isinstance(sums, dict) and all(isinstance(digest, str) for digest in sums.values())):
        raise configuration_error(f"{lock}: must be an object with a sum for each address", remedy)
    return sums


def mirror_folder(setting: str | None) -> Path | None:
    """Return the folder that $TRANSFORMER_MIRROR or else `machine.mirror` names, from `repository` on. Raises `UserError` (78): none."""
    variable = os.environ.get(MIRROR_VARIABLE)
    named = variable or setting
    if not named:
        return None
    folder = repository() / os.path.expanduser(named)  # noqa: PTH111  # `Path.expanduser` raises for a user that does not exist.
    if not folder.is_dir():
        origin = f"${MIRROR_VARIABLE}" if variable else "machine.mirror"
        raise configuration_error(f"{origin}: no folder {named}", "Name a folder with CORPUS/FILENAME in it, or remove the setting.")
    return folder


def check_sum(path: Path, expected: Sum | None, name: str = "") -> Fetched:
    """Check the sum of a local file, called `name` or its path in messages. Raises `UserError` (65): it is not the expected one."""
    sha256 = sha256_of(path)
    if expected:
        with path.open("rb") as file:
            found = sha256 if expected.algorithm == "sha256" else hashlib.file_digest(file, expected.algorithm).hexdigest()
        if found != expected.digest:
            remedy = f"The file was changed or damaged: get it again, or correct the sum in {expected.given_in}."
            raise UserError(f"{name or path}: wrong {expected.algorithm}: wanted {expected.digest}, found {found}", remedy)
    return Fetched(path, sha256)
