"""What a training takes of its machine, every few seconds into its journal, under the names that MLflow's pages know."""

import threading
from types import TracebackType
from typing import Self

import psutil
import torch

from flows.record.journal import Journal

INTERVAL_SECONDS = 10.0
_CPU = "system/cpu_utilization_percentage"


class Usage:
    """Samples from a thread while the block runs; a training that goes on goes on counting.

    Args:
        journal: the run's journal.
        device: of this process; of several GPUs each training process sees its own.
    """

    def __init__(self, journal: Journal, device: torch.device) -> None:
        self._journal = journal
        self._device = device
        self._step = journal.next_step(_CPU)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="usage", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        psutil.cpu_percent()  # What is measured is the time between two calls.
        while not self._stop.wait(INTERVAL_SECONDS):
            self._journal.metrics(self._step, usage(self._device))
            self._step += 1


def device_name(device: torch.device) -> str:
    """The kind of GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def usage(device: torch.device) -> dict[str, float]:
    """The machine's CPUs and memory, and the memory of this process's GPU."""
    memory = psutil.virtual_memory()
    values = {
        _CPU: psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": round(memory.used / 1e6, 1),
        "system/system_memory_usage_percentage": round(100 * memory.used / memory.total, 1),
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        values["system/gpu_0_memory_usage_megabytes"] = round((total - free) / 1e6, 1)
        values["system/gpu_0_memory_usage_percentage"] = round(100 * (total - free) / total, 1)
    return values
