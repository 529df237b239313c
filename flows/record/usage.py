"""The use of CPUs, memory and GPUs of each node of a training, sampled by a thread of the node's first rank into a table of its own.

The metrics have the names of MLflow's own monitor, so that MLflow's page of system metrics shows them. That monitor cannot write to a file:
it asks the server about the run at every sample, and ends if there is no answer.
"""

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from flows.process.runner import in_background
from flows.record.run import CPU, RunRecord, read_record
from transformer_core.errors import UserError

# File in a training's state with the id of its record.
RUN = "run"
SECONDS_BETWEEN_SAMPLES = 10.0
_TIMEOUT_SECONDS = 10.0
_GPU_FIELDS = "index,utilization.gpu,power.draw,memory.used,memory.total"
_MEBIBYTE = 2**20


@contextmanager
def sampling(state: Path) -> Iterator[None]:
    """Sample the use of this node during the block, if this process is its first rank, for the training with this state directory."""
    if int(os.environ.get("LOCAL_RANK", "0")) > 0:
        yield
        return

    def sample(stop: threading.Event) -> None:
        psutil.cpu_percent()  # The share is measured between two calls.
        samples: _Samples | None = None
        ended = False
        while not ended:
            ended = stop.wait(SECONDS_BETWEEN_SAMPLES)  # The last sample is that of the end, so that a short training has one.
            with suppress(OSError, UserError):  # On a full disk a sample is lost, and not all later ones.
                if samples is None and (record := read_record((state / RUN).read_text(encoding="utf-8"))):
                    samples = _Samples(record, int(os.environ.get("GROUP_RANK", "0")))
                if samples is not None:
                    samples.append(_usage())

    with in_background(sample, "usage", _TIMEOUT_SECONDS):
        yield


class _Samples:
    """The table of a node's samples. A line of names precedes the first row, and rows with other columns, as of another machine."""

    def __init__(self, record: RunRecord, node: int) -> None:
        self._path, self._start_ms = record.folder / f"machine-{node}.csv", record.start_ms
        content = self._path.read_bytes() if self._path.exists() else b""
        if not content.endswith(b"\n"):  # A kill or a full disk has cut off the last line.
            self._path.write_bytes(content[: content.rfind(b"\n") + 1])
        self._next = sum(line[:1].isdigit() for line in content.split(b"\n")[:-1])
        self._columns = ""

    def append(self, values: Mapping[str, float]) -> None:
        """Append a row, whole or not at all."""
        columns = ",".join(["sample", "seconds", *values])
        row = ",".join(map(str, [self._next, round(time.time() - self._start_ms / 1000, 1), *values.values()]))
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{row}\n" if columns == self._columns else f"{columns}\n{row}\n")
        except OSError:
            os.truncate(self._path, size)
            raise
        self._columns, self._next = columns, self._next + 1


def _usage() -> dict[str, float]:
    """Return the use of CPUs, memory and all GPUs of this machine."""
    memory = psutil.virtual_memory()
    return {
        CPU: psutil.cpu_percent(),
        "system_memory_usage_megabytes": round(memory.used / 1e6, 1),
        "system_memory_usage_percentage": round(100 * memory.used / memory.total, 1),
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
        gpu = f"gpu_{index}"
        with suppress(ValueError):
            values[f"{gpu}_utilization_percentage"] = float(utilization)
        with suppress(ValueError):
            values[f"{gpu}_power_usage_watts"] = float(watts)
        with suppress(ValueError):
            values[f"{gpu}_memory_usage_megabytes"] = round(float(used) * _MEBIBYTE / 1e6, 1)
            values[f"{gpu}_memory_usage_percentage"] = round(100 * float(used) / float(total), 1)
    return values
