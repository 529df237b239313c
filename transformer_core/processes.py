"""The cores of this machine, and a parallel `map` over processes, with the results in the order of the tasks."""

import ctypes
import os
import platform
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

from transformer_core.errors import ExitCode, UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
_PR_SET_PDEATHSIG = 1
_BYTES_PER_WORKER = 4 << 20
# Set in a worker.
_function: Callable[[Any], Any]


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
    # Spawned, not forked: the caller may have threads.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (function,))
    try:
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
    except BrokenProcessPool:
        remedy = "Run it again. If memory ran out, use fewer processes."
        raise UserError("a worker process ended early", remedy, ExitCode.INTERRUPTED) from None
    finally:
        pool.shutdown(cancel_futures=True)


def in_child(function: Callable[[], Result]) -> Result:
    """Return the function's result, computed by a process that ends with this one, which answers stop signals meanwhile.

    Raises:
        UserError: exit code 75; the process ended early, as the kernel ends one when memory runs out.
        Exception: of `function`.
    """
    context = get_context("spawn")
    ours, of_child = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(function, of_child), daemon=True)
    child.start()
    of_child.close()
    try:
        result, error = ours.recv()
    except EOFError:
        raise UserError("a process ended early", "Run it again. If memory ran out, use less text.", ExitCode.INTERRUPTED) from None
    finally:
        child.kill()
        child.join()
    if error is not None:
        raise error
    return cast(Result, result)


def _answer(function: Callable[[], Any], parent: "Connection[Any, Any]") -> None:
    """Send the function's result and None, or None and its error."""
    _prepare_child()
    try:
        parent.send((function(), None))
    except Exception as error:
        parent.send((None, error))


def _begin(function: Callable[[Any], Any]) -> None:
    """Prepare a worker for a function."""
    global _function
    _function = function
    _prepare_child()


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent's thread ends; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prepare_child() -> None:
    """Ignore stop signals, which the parent handles, and end with the parent: a thread would not notice its end during a call of C++."""
    end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _result(task: Any) -> Any:
    return _function(task)
