"""The cores of this machine, and a parallel `map` over processes, with the results in the order of the tasks."""

import ctypes
import os
import platform
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from transformer_core.errors import ExitCode, UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
_PR_SET_PDEATHSIG = 1
_BYTES_PER_WORKER = 4 << 20
# Set in a worker.
_function: Callable[..., Any]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """Return the model of this machine's CPU, or its architecture if the system does not name the model."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def workers_for(text: Path) -> int:
    """Return the number of processes that pays off for a file of text, at most one per core."""
    try:
        return max(1, min(cores(), text.stat().st_size // _BYTES_PER_WORKER))
    except OSError:
        return 1  # The reader of the file reports the error.


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int) -> Iterator[Result]:
    """Yield the results of `map`, computed by `workers` processes; with one worker, by this process.

    Few tasks wait for each process, so memory is bounded. The function (once a process), tasks and results are pickled. The processes end
    with this one, even if it is killed.

    Raises:
        UserError: exit code 75; a process ended early, as the kernel ends one when memory runs out.
        Exception: of `function` or `tasks`, after the results of earlier tasks.
    """
    if workers <= 1:
        yield from map(function, tasks)
        return
    coming, waiting = iter(tasks), deque[Future[Result]]()
    with _processes(workers, function) as pool:
        while True:
            try:
                task = next(coming)
            except Exception as error:
                ended = error
                break
            waiting.append(pool.submit(_result, task))
            if len(waiting) == workers * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        if not isinstance(ended, StopIteration):
            raise ended


def in_child(function: Callable[[], Result]) -> Result:
    """Return the function's result, computed by a process that ends with this one, which answers stop signals meanwhile.

    Raises `UserError` (75): the process ended early, as the kernel ends one when memory runs out; and what the function raises.
    """
    with _processes(1, function) as pool:
        result: Result = pool.submit(_result).result()
        return result


@contextmanager
def _processes(workers: int, function: Callable[..., Any]) -> Iterator[ProcessPoolExecutor]:
    """Start processes for a function; at the end of the block they are killed, whatever they are still doing."""
    # Spawned, not forked: the caller may have threads.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (function,))
    try:
        yield pool
    except BrokenProcessPool:
        remedy = "Run it again. If memory ran out, use fewer processes or less text."
        raise UserError("a worker process ended early", remedy, ExitCode.INTERRUPTED) from None
    finally:
        for process in pool._processes.values():
            process.kill()
        pool.shutdown()


def _begin(function: Callable[..., Any]) -> None:
    """Prepare a worker for a function. It ignores stop signals, which the parent handles."""
    global _function
    _function = function
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = parent_process()
    if parent is None or os.getppid() != parent.pid:
        os._exit(1)  # It had ended before.


def _result(*task: Any) -> Any:
    return _function(*task)


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent's thread ends: a thread would not notice that during a call of C++."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
