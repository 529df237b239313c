"""The processes that train together: rank, device and precision of this process, and reductions over all of them."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed
from torch import Tensor

from transformer_core.config import Precision
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.models.precision import choose_kernels, low_precision, weights_dtype
from transformer_core.processes import cores

Value = TypeVar("Value")


@dataclass(frozen=True)
class Rank:
    """One process of `world_size`, by its index; only rank 0 writes files."""

    index: int
    world_size: int
    device: torch.device
    slow: torch.distributed.ProcessGroup | None = None  # The ranks again, for waits that may be long.

    def sum_over_ranks(self, values: Tensor) -> None:
        """Sum a tensor over all ranks, in place."""
        if self.world_size > 1:
            torch.distributed.all_reduce(values)

    def gathered(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Value] = [value] * self.world_size
        torch.distributed.all_gather_object(values, value)
        return values

    def broadcast(self, values: Tensor) -> None:
        """Set a tensor to that of rank 0, in place."""
        if self.world_size > 1:
            torch.distributed.broadcast(values, 0)

    def check_agreement(self, values: Mapping[str, object], remedy: str, exit_code: ExitCode = ExitCode.BAD_CONFIGURATION) -> None:
        """Raise a `UserError`, on every rank, if one of the named values is not the same on all ranks. Every rank calls this."""
        everywhere = self.gathered({name: str(value) for name, value in values.items()})
        differences = []
        for name in values:
            ranks: dict[str, list[str]] = {}
            for index, of_rank in enumerate(everywhere):
                ranks.setdefault(of_rank[name], []).append(str(index))
            if len(ranks) > 1:
                found = ", ".join(f"{value} (rank {' '.join(numbers)})" for value, numbers in ranks.items())
                differences.append(f"{name}: {found}")
        if differences:
            raise UserError(f"the ranks do not agree on {'; '.join(differences)}", remedy, exit_code)

    def wait_for_all(self) -> None:
        """Wait until every rank has called this, also longer than NCCL would wait: rank 0 may be writing to slow storage."""
        if self.world_size > 1:
            torch.distributed.barrier(self.slow)


def default_devices(microbatches: int) -> int:
    """Return the default of `machine.devices`: one process per GPU, else one per core, at most one per micro-batch of an update.

    On a CPU two processes with one thread each are 1.4 times as fast as one process with two threads (default recipe): in a small model,
    the operations between the matrix products are too short to be divided among threads.
    """
    here = torch.cuda.device_count() if torch.cuda.is_available() else cores()
    return max(1, min(here, microbatches))


def default_threads(devices: int) -> int:
    """Return the default of `machine.threads` for this many processes on a machine: they share its cores."""
    return max(1, cores() // devices)


@contextmanager
def process_group(threads: int | None) -> Iterator[Rank]:
    """Join the process group of the ranks that torchrun started; without torchrun's environment this is the only rank.

    On a CPU it has so many threads; None shares the machine's cores among its ranks. Raises `UserError`: 78, the machine has GPUs, but
    fewer than ranks; 69, CUDA cannot use the GPUs that the driver lists.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank, local_world_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(threads or default_threads(local_world_size))
    if torch.cuda.is_available():
        if local_world_size > torch.cuda.device_count():
            raise configuration_error(f"machine.devices: {local_world_size} asked for, {torch.cuda.device_count()} GPUs here")
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    elif torch.cuda.device_count():  # By the driver's library, which needs no working CUDA.
        message = f"CUDA: none of the {torch.cuda.device_count()} GPUs of this machine can be used"
        remedy = "See transformer-core doctor. To train on CPUs, set CUDA_VISIBLE_DEVICES to nothing."
        raise UserError(message, remedy, ExitCode.UNAVAILABLE)
    else:
        device = torch.device("cpu")
    choose_kernels(device)
    slow = None
    if world_size > 1:
        # On an NVSwitch the switch itself can add up (NVLS), in an order that changes from call to call (nccl issue 1497).
        os.environ.setdefault("NCCL_ALGO", "^NVLS,NVLSTree")
        on_gpu = device.type == "cuda"  # Told the device, NCCL connects at once, and a barrier has no need to guess it and to warn.
        torch.distributed.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
        slow = torch.distributed.new_group(backend="gloo", timeout=timedelta(hours=2))
    try:
        yield Rank(rank, world_size, device, slow)
    except Exception:  # Of one rank alone: NCCL would wait below for the others, which wait for this rank.
        world_size = 1
        raise
    finally:
        if world_size > 1:
            torch.distributed.destroy_process_group()


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Return the context of a forward pass: matrix products are in low precision if `precision` asks for it."""
    low = low_precision(device, precision)
    return nullcontext() if low is None else torch.autocast(device.type, dtype=low)


def matrix_rate(rank: Rank, precision: Precision) -> float:
    """Return the FLOP/s of all devices together in products of large square matrices in this precision; the best of a few trials.

    A GPU's clock rises under load, and a wait for the GPU takes as long as a part of a product: many trials, each of several products.
    """
    size, products, least_seconds = (4096, 20, 0.3) if rank.device.type == "cuda" else (1024, 1, 0.0)
    left = torch.rand(size, size, device=rank.device).to(low_precision(rank.device, precision) or weights_dtype(precision))
    product, seconds = torch.empty_like(left), list[float]()
    while len(seconds) <= 3 or sum(seconds) < least_seconds:
        began = time.perf_counter()
        for _ in range(products):
            torch.mm(left, left, out=product)
        product[0, 0].item()
        seconds.append(time.perf_counter() - began)
    rate = torch.tensor(2 * size**3 * products / min(seconds), dtype=torch.float64, device=rank.device)
    rank.sum_over_ranks(rate)
    return rate.item()
