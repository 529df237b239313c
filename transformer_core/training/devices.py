"""The processes that train together: who this one is, where it computes, in which precision, and sums over all of them."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed
from torch import Tensor

from transformer_core.errors import configuration_error
from transformer_core.models.precision import Precision, low_precision
from transformer_core.processes import cores

Value = TypeVar("Value")


@dataclass(frozen=True)
class Devices:
    """One process of `world_size`; rank 0 alone writes anything."""

    rank: int
    world_size: int
    device: torch.device

    def sum_over_ranks(self, values: Tensor) -> None:
        """Add up a tensor over all ranks, in place."""
        if self.world_size > 1:
            torch.distributed.all_reduce(values)

    def gathered(self, value: Value) -> list[Value]:
        """Each rank's value, in the order of ranks, on all of them."""
        if self.world_size == 1:
            return [value]
        values: list[Value] = [value] * self.world_size
        torch.distributed.all_gather_object(values, value)
        return values

    def wait_for_all(self) -> None:
        """Return when every rank has come here."""
        if self.world_size > 1:
            torch.distributed.barrier()


def default_devices(microbatches: int) -> int:
    """How many processes train where `machine.devices` does not say: all GPUs, else a process a core, at most one a micro-batch.

    On a CPU two processes of one thread each beat one of two threads (1.4 times the rate on the default recipe): what lies between the
    matrix products of a small model is too short to be shared out among threads.

    Args:
        microbatches: of an update.
    """
    here = torch.cuda.device_count() if torch.cuda.is_available() else cores()
    return max(1, min(here, microbatches))


def default_threads(devices: int) -> int:
    """Threads of each of so many processes on this machine where `machine.threads` does not say: all share its cores."""
    return max(1, cores() // devices)


@contextmanager
def joined(threads: int | None) -> Iterator[Devices]:
    """Join the other ranks that torchrun started (its environment says which), or be the only one.

    Args:
        threads: threads of this rank on a CPU; None shares the machine's cores between the ranks on it.

    Raises:
        UserError: exit code 78; more ranks than GPUs on a machine that has GPUs.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_world_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(threads or default_threads(local_world_size))
    if torch.cuda.is_available():
        if local_world_size > torch.cuda.device_count():
            raise configuration_error(f"machine.devices: {local_world_size} asked for, {torch.cuda.device_count()} GPUs here")
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if world_size == 1:
        yield Devices(rank, world_size, device)
        return
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Devices(rank, world_size, device)
    finally:
        torch.distributed.destroy_process_group()


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The context of a forward pass: matrix products in low precision where `precision` asks for it."""
    low = low_precision(device, precision)
    return nullcontext() if low is None else torch.autocast(device.type, dtype=low)


def loss_scaler(device: torch.device, precision: Precision) -> torch.amp.GradScaler:
    """What keeps small gradients above fp16's least number; in any other precision it does nothing."""
    return torch.amp.GradScaler(device.type, init_scale=2.0**13, enabled=low_precision(device, precision) == torch.float16)
