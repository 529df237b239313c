"""The use of CPUs, memory and GPUs of each node of a training, sampled by a thread of the node's first rank.

Node 0 records its own samples and those of the other nodes, which it reads from torchrun's store. The metrics have the names of MLflow's
own monitor, so that MLflow's page of system metrics shows them. That monitor cannot write to the journal: it asks the server about the run
at every sample, and ends if there is no answer.
"""

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import psutil
from torch.distributed import DistError, Store, TCPStore  # type: ignore[attr-defined]  # Public, but not in its list of names.

from flows.process.runner import in_background
from flows.record.journal import SAMPLES, Journal

SECONDS_BETWEEN_SAMPLES = 10.0
_TIMEOUT_SECONDS = 10.0
_CPU = f"{SAMPLES}cpu_utilization_percentage"
_GPU_FIELDS = "index,utilization.gpu,power.draw,memory.used,memory.total"
_MEBIBYTE = 2**20


@contextmanager
def sampling(journal: Journal) -> Iterator[None]:
    """Record the use of all nodes during the block. A resumed training continues the numbering of samples."""
    nodes, steps = int(os.environ.get("GROUP_WORLD_SIZE", "1")), itertools.count(journal.next_step(_CPU))
    store = _torchrun_store() if nodes > 1 else None

    def record(sample: dict[str, float]) -> None:
        journal.metrics(next(steps), sample | (_received(store, nodes) if store else {}))

    with _sampled(record):
        yield


@contextmanager
def reporting() -> Iterator[None]:
    """Send the use of this node to node 0 during the block, if this process is the first rank of another node."""
    node, local_rank = int(os.environ.get("GROUP_RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    store = _torchrun_store() if node > 0 and local_rank == 0 else None
    if store is None:
        yield
        return

    def send(sample: dict[str, float]) -> None:
        with suppress(DistError):  # Node 0 has ended.
            store.set(_key(node), json.dumps(sample))

    with _sampled(send):
        yield


@contextmanager
def _sampled(take: Callable[[dict[str, float]], None]) -> Iterator[None]:
    def sample(stop: threading.Event) -> None:
        psutil.cpu_percent()  # The share is measured between two calls.
        while not stop.wait(SECONDS_BETWEEN_SAMPLES):
            with suppress(OSError):  # On a full disk a sample is lost, and not all later ones.
                take(_usage())

    with in_background(sample, "usage", _TIMEOUT_SECONDS):
        yield


def _torchrun_store() -> Store | None:
    """Return a new connection to torchrun's store, or None if it cannot be reached."""
    with suppress(DistError):
        timeout = timedelta(seconds=_TIMEOUT_SECONDS)
        return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout, wait_for_workers=False)
    return None


def _received(store: Store, nodes: int) -> dict[str, float]:
    """Return the new samples of the other nodes, with the node in the names."""
    values: dict[str, float] = {}
    with suppress(DistError):
        for node in range(1, nodes):
            if store.check([_key(node)]):
                sample = json.loads(store.get(_key(node)))
                values |= {name.replace(SAMPLES, f"{SAMPLES}node_{node}/", 1): value for name, value in sample.items()}
                store.delete_key(_key(node))
    return values


def _key(node: int) -> str:
    return f"usage/{node}"


def _usage() -> dict[str, float]:
    """Return the use of CPUs, memory and all GPUs of this machine."""
    memory = psutil.virtual_memory()
    return {
        _CPU: psutil.cpu_percent(),
        f"{SAMPLES}system_memory_usage_megabytes": round(memory.used / 1e6, 1),
        f"{SAMPLES}system_memory_usage_percentage": round(100 * memory.used / memory.total, 1),
        **_gpu_usage(),
    }


def _gpu_usage() -> dict[str, float]:
    """Return the use of every GPU that nvidia-smi lists. It prints [N/A] for values that a GPU does not measure."""
    command = ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    values = {}
    for line in lines:
        fields = line.split(", ")
        if len(fields) != _GPU_FIELDS.count(",") + 1:  # A message in place of a GPU that does not answer.
            continue
        index, utilization, watts, used, total = fields
        gpu = f"{SAMPLES}gpu_{index}"
        with suppress(ValueError):
            values[f"{gpu}_utilization_percentage"] = float(utilization)
        with suppress(ValueError):
            values[f"{gpu}_power_usage_watts"] = float(watts)
        with suppress(ValueError):
            values[f"{gpu}_memory_usage_megabytes"] = round(float(used) * _MEBIBYTE / 1e6, 1)
            values[f"{gpu}_memory_usage_percentage"] = round(100 * float(used) / float(total), 1)
    return values
