"""A lock for each GPU: runs on one machine (trials of a sweep, two pipelines, two users) take different GPUs, or wait for them."""

import fcntl
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice, takewhile
from pathlib import Path
from tempfile import gettempdir

from flows.process.runner import echo

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY_SECONDS = 60
_PAUSE_SECONDS = 2.0


@contextmanager
def free_gpus(most: int | None = None) -> Iterator[None]:
    """Let CUDA see only GPUs that no other stage of this machine uses: as many as given, or all that are free. Wait if there are too few.

    CUDA must not be in use yet: it reads $CUDA_VISIBLE_DEVICES once. On a machine without an NVIDIA GPU nothing changes.
    """
    gpus, before = visible_gpus(), os.environ.get(_VISIBLE)
    with ExitStack() as held:
        if gpus:
            os.environ[_VISIBLE] = ",".join(_taken(gpus, most, held))
        try:
            yield
        finally:
            if before is not None:
                os.environ[_VISIBLE] = before
            elif gpus:
                os.environ.pop(_VISIBLE, None)


def visible_gpus() -> dict[str, str]:
    """Return the GPUs that this process may use: the name of each for CUDA, and its UUID, by which all processes know it."""
    uuids = {index: uuid for index, *cells in gpu_rows(_QUERY_SECONDS, "index", "uuid") for uuid in cells}
    chosen = os.environ.get(_VISIBLE)
    names = list(uuids.values()) if chosen is None else [name.strip() for name in chosen.split(",") if name.strip()]
    names = list(takewhile(lambda name: not name.startswith("-"), names))  # As CUDA does: -1 hides itself and what follows.
    return {name: uuids.get(name, name) for name in names}


def gpu_rows(seconds: float, *fields: str) -> list[list[str]]:
    """Return fields of every GPU, as nvidia-smi lists them; none without an answer in time. Of a GPU that has failed it has a message."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        rows = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [row.split(", ") for row in rows]


def _taken(gpus: Mapping[str, str], most: int | None, held: ExitStack) -> list[str]:
    """Return the names of GPUs whose locks are `held` from now on: `most`, or all that are free and at least one."""
    wanted, waiting = min(most or 1, len(gpus)), False
    while True:
        with ExitStack() as found:
            free = list(islice((name for name, uuid in gpus.items() if take_if_free(uuid, found)), most))
            if len(free) >= wanted:
                held.push(found.pop_all())
                return free
        if not waiting:
            echo(f"waiting for {wanted} of {len(gpus)} GPUs, of which {len(free)} are free", sys.stderr)
            waiting = True
        time.sleep(_PAUSE_SECONDS * random.uniform(0.5, 1.5))  # Two that each hold a part of what they need must not go on in step.


def take_if_free(uuid: str, held: ExitStack) -> bool:
    """Take the lock of a GPU if it is free, and return whether it was. Another user's file can be opened for reading only."""
    path = Path(gettempdir(), f"transformer-gpu-{uuid}.lock")
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        file = os.open(path, os.O_RDONLY | os.O_CREAT)
        os.fchmod(file, 0o644)  # Whatever the umask is, others can open it.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    held.callback(os.close, file)
    return True
