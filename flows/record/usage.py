"""The use of CPUs, memory and GPUs of each node of a training, sampled by a thread of the node's first rank into a table of its own.

The metrics have the names of MLflow's own monitor, so that MLflow's page of system metrics shows them. That monitor cannot write to a file:
it asks the server about the run at every sample, and ends if there is no answer.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import psutil

from flows.process.gpus import gpu_rows
from flows.process.runner import in_background
from flows.record.run import CPU, now_ms, read_record
from transformer_core.errors import UserError

# File in a training's state with the id of its record.
RUN = "run"
SECONDS_BETWEEN_SAMPLES = 10.0
_TIMEOUT_SECONDS = 10.0
# Metrics of a GPU: nvidia-smi's fields, and what their units are in those of the metrics.
_OF_GPU = {
    "utilization_percentage": ("utilization.gpu", 1.0),
    "power_usage_watts": ("power.draw", 1.0),
    "memory_usage_megabytes": ("memory.used", 2**20 / 1e6),
}


def sampling(state: Path) -> AbstractContextManager[None]:
    """Sample the use of this node during the block, if this process is its first rank, for the training with this state directory."""

    def sample(stop: threading.Event) -> None:
        psutil.cpu_percent()  # The share is measured between two calls.
        ended = False
        while not ended:
            ended = stop.wait(SECONDS_BETWEEN_SAMPLES)  # The last sample is that of the end, so that a short training has one.
            with suppress(OSError, UserError):  # On a full disk a sample is lost, and not all later ones.
                if record := read_record((state / RUN).read_text(encoding="utf-8")):
                    seconds = round((now_ms() - record.start_ms) / 1000, 1)
                    _append(record.folder / f"machine-{os.environ.get('GROUP_RANK', '0')}.csv", {"seconds": seconds, **_usage()})

    return in_background(sample, "usage", _TIMEOUT_SECONDS) if os.environ.get("LOCAL_RANK", "0") == "0" else nullcontext()


def _append(table: Path, values: Mapping[str, float]) -> None:
    """Append a numbered row after the last whole line: a kill or a full disk may have cut off another. New names precede it."""
    with table.open("a+b") as file:
        file.seek(0)
        lines = [line for line in file if line.endswith(b"\n")]
        file.truncate(sum(map(len, lines)))
        heads = [line for line in lines if not line[:1].isdigit()]
        head = f"{','.join(['sample', *values])}\n".encode()
        row = ",".join(map(str, [len(lines) - len(heads), *values.values()]))
        file.write(b"" if heads[-1:] == [head] else head)
        file.write(f"{row}\n".encode())


def _usage() -> dict[str, float]:
    """Return the use of CPUs, memory and all GPUs of this machine. nvidia-smi prints [N/A] for values that a GPU does not measure."""
    memory = psutil.virtual_memory()
    values = {
        CPU: psutil.cpu_percent(),
        "system_memory_usage_megabytes": round(memory.used / 1e6, 1),
        "system_memory_usage_percentage": round(100 * memory.used / memory.total, 1),
    }
    for index, *cells in gpu_rows(_TIMEOUT_SECONDS, "index", *(field for field, _ in _OF_GPU.values())):  # A message has no cells.
        for (name, (_, unit)), cell in zip(_OF_GPU.items(), cells, strict=False):
            with suppress(ValueError):
                values[f"gpu_{index}_{name}"] = round(float(cell) * unit, 1)
    return values
