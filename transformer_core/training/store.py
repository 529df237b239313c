"""A training's state on S3 ($TRANSFORMER_STATE=s3://bucket/path), from which a machine that shares no disk goes on.

A training works in its local folder as always. After each save the folder is copied to the store. Before a training begins, the newest
whole state of the store is fetched, if it is later than that of the folder. S3 shows an object once all of it is there. The sum of a state
is written after it and removed before it; a state without its sum, or with another one, is passed over.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from socket import gethostname

from transformer_core.errors import ExitCode, UserError, configuration_error, first_line
from transformer_core.files import new_file, sha256_of

_WRITER = "writer-"
_log = logging.getLogger(__name__)


def this_process() -> str:
    """Return words for this process, which no other writer has, nor this one later."""
    return f"process {os.getpid()} on {gethostname()} since {datetime.now().astimezone().isoformat(' ')}"


class StoreAway(UserError):
    """The store could not be read or written: exit code 69."""


class Store:
    """The copy of one training's folder on S3. AWS's own variables and files have the credentials, $AWS_ENDPOINT_URL another server."""

    def __init__(self, url: str) -> None:
        try:
            import s3fs  # type: ignore[import-untyped]  # An extra.
        except ImportError:
            raise configuration_error("$TRANSFORMER_STATE: s3fs is not installed", "Install it: make install EXTRAS=s3") from None
        self.url = url
        self._s3 = s3fs.S3FileSystem(use_listings_cache=False)
        self._sent: dict[str, tuple[int, int]] = {}
        self._claim = ""

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Let errors of the block say that the store cannot be reached, or may not be written."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except PermissionError as error:
            raise configuration_error(f"{self.url}: {first_line(error)}", "Check the credentials and the rights on the bucket.") from None
        except Exception as error:  # Botocore's are no OSError.
            raise StoreAway(f"{self.url}: {first_line(error)}", "Run it again when it can be reached.", ExitCode.UNAVAILABLE) from None

    def _names(self) -> set[str]:
        root = self.url.removeprefix("s3://")
        try:
            with self._reached():
                return {path.removeprefix(f"{root}/") for path in self._s3.find(root)}
        except FileNotFoundError:
            raise configuration_error(f"{self.url}: no such bucket", "Create it.") from None

    def claim(self) -> None:
        """Become the only writer: writers are numbered, and S3 creates an object of a new number for one of several that try at once."""
        number = max((int(name.removeprefix(_WRITER)) for name in self._names() if name.startswith(_WRITER)), default=0)
        while not self._claim:
            number += 1
            with suppress(FileExistsError), self._reached():
                self._s3.pipe_file(f"{self.url}/{_WRITER}{number:06d}", this_process().encode(), mode="create")
                self._claim = f"{_WRITER}{number:06d}"

    def push(self, files: dict[str, Path]) -> None:
        """Copy files, by their names in the store, that it does not have as they are now, and remove all others.

        Raises `UserError`: 69, another process has become the writer, or, a `StoreAway`, the store is away; 78, it may not be written.
        """
        there = self._names()
        last = max((name for name in there if name.startswith(_WRITER)), default=self._claim)
        if last != self._claim:
            with self._reached():
                writer = self._s3.cat_file(f"{self.url}/{last}").decode()
            raise UserError(f"{self.url}: {writer} trains this", "This process writes nothing more.", ExitCode.UNAVAILABLE)
        with self._reached():
            for name, file in files.items():
                stamp = file.stat().st_mtime_ns, file.stat().st_size
                if self._sent.get(name) != stamp or name not in there:
                    self._s3.put_file(str(file), f"{self.url}/{name}")
                    self._sent[name] = stamp
            for name in sorted(there - files.keys() - {self._claim}, reverse=True):  # A sum before its state.
                self._s3.rm_file(f"{self.url}/{name}")

    def fetch(self, name: str, file: Path) -> None:
        """Copy a file from the store; nodes that share its folder may do so at the same time."""
        with new_file(file) as temporary, self._reached():
            self._s3.get_file(f"{self.url}/{name}", str(temporary))

    def newest_state(self, directory: Path, after: int) -> str:
        """Fetch the newest whole state after an update to a folder, and return the name of its sum, to be fetched last; or ""."""
        sums = (name for name in self._names() if name.startswith("state-") and name.endswith(".sha256"))
        for name in sorted(sums, reverse=True):
            if int(name[len("state-") : -len(".sha256")]) <= after:
                break
            state = (directory / name).with_suffix(".pt")
            (directory / name).unlink(missing_ok=True)  # Of a state that is damaged here.
            with suppress(FileNotFoundError):
                self.fetch(state.name, state)
                with self._reached():
                    total = self._s3.cat_file(f"{self.url}/{name}")
                if total == sha256_of(state).encode():
                    return name
            _log.warning("%s/%s: damaged, passed over", self.url, state.name)
            state.unlink(missing_ok=True)
        return ""

    def fetch_folder(self, name: str, folder: Path) -> None:
        """Fetch all files of a folder."""
        for file in (one for one in self._names() if one.startswith(f"{name}/")):
            self.fetch(file, folder / file.removeprefix(f"{name}/"))

    def remove(self) -> None:
        """Remove all of the training."""
        with suppress(FileNotFoundError), self._reached():
            self._s3.rm(self.url, recursive=True)


def store_of(state: Path) -> Store | None:
    """Return the store of a training; None if $TRANSFORMER_STATE names none. Raises `UserError` (78): it is no address of S3."""
    root = os.environ.get("TRANSFORMER_STATE", "")
    if "://" not in root:
        return None
    if not root.startswith("s3://"):
        raise configuration_error(f"$TRANSFORMER_STATE: {root}: not an address of S3", "Write s3://BUCKET/PATH, or a folder.")
    return Store(f"{root.rstrip('/')}/{state.name}")
