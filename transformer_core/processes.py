"""The cores of this machine, and a parallel `map` over processes, with the results in the order of the tasks."""

import ctypes
import logging
import os
import platform
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import version
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from transformer_core.errors import ExitCode, UserError, configuration_error

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
_PR_SET_PDEATHSIG = 1
_BYTES_PER_WORKER = 4 << 20
# Of tasks that wait for workers elsewhere, of which some may come later; and of tries of a task whose worker meets a fault that may pass.
_LEAST_ELSEWHERE, _RETRIES = 16, 3
_CONNECT_SECONDS = 20
# Submits a task, and the number of tasks that may wait.
_Pool = tuple[Callable[..., Future[Any]], int]
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


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], workers: int | str) -> Iterator[Result]:
    """Yield the results of `map`, computed by other processes; with one worker, by this process.

    Few tasks wait for a process: memory is bounded. Function, tasks and results are pickled. Local processes end with this one.

    `workers` is their number, or where workers of Dask are, as `machine.scheduler` says it. Their number does not change the results, and
    the tasks of one that is lost run on another.

    Raises `UserError`: 75, processes end early, as the kernel ends one when memory runs out; 69, the workers elsewhere are away; 78, they
    have other code than this machine, or Dask is not installed. Errors of `function` or `tasks` come after the results of earlier tasks.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    coming, waiting = iter(tasks), deque[Future[Result]]()
    with _elsewhere(workers, function) if isinstance(workers, str) else _processes(workers, function) as (submit, most):
        while True:
            try:
                task = next(coming)
            except Exception as error:
                ended = error
                break
            waiting.append(submit(task))
            if len(waiting) == most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        if not isinstance(ended, StopIteration):
            raise ended


def in_child(function: Callable[[], Result]) -> Result:
    """Return the function's result, computed by a process that ends with this one, which answers stop signals meanwhile.

    Raises `UserError` (75): the process ended early, as the kernel ends one when memory runs out; and what the function raises.
    """
    with _processes(1, function) as (submit, _):
        result: Result = submit().result()
        return result


@contextmanager
def _processes(workers: int, function: Callable[..., Any]) -> Iterator[_Pool]:
    """Start processes for a function; at the end of the block they are killed, whatever they are still doing."""
    # Spawned, not forked: the caller may have threads.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (function,))
    try:
        yield partial(pool.submit, _result), _AHEAD * workers
    except BrokenProcessPool:
        raise _ended_early() from None
    finally:
        for process in pool._processes.values():
            process.kill()
        pool.shutdown()


@contextmanager
def _elsewhere(scheduler: str, function: Callable[..., Any]) -> Iterator[_Pool]:
    """Connect to the workers of a scheduler of Dask, given its address or its file."""
    try:
        from distributed import Client, KilledWorker
        from distributed.comm.core import CommClosedError
    except ImportError:
        remedy = "Install it with: pip install 'transformer-pipeline[dask]'"
        raise configuration_error("machine.scheduler: Dask is not installed", remedy) from None
    away = UserError(f"machine.scheduler: no worker answers at {scheduler}", "Start them, or empty the setting.", ExitCode.UNAVAILABLE)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # It would tell of each lost connection.
    with ExitStack() as stack:
        try:
            where = {"address": scheduler} if "://" in scheduler else {"scheduler_file": str(Path(scheduler).resolve(strict=True))}
            client = stack.enter_context(Client(**where, timeout=_CONNECT_SECONDS, set_as_default=False))  # type: ignore[no-untyped-call]
            client.wait_for_workers(1, timeout=_CONNECT_SECONDS)
        except (OSError, ValueError):
            raise away from None
        executor = client.get_executor(retries=_RETRIES)
        stack.callback(executor.shutdown, wait=False)
        try:
            most = max(_LEAST_ELSEWHERE, _AHEAD * sum(client.nthreads().values()))
            yield partial(executor.submit, _result_elsewhere, _code(), function), most
        except KilledWorker:
            raise _ended_early() from None
        except (CancelledError, CommClosedError):
            raise away from None


def _ended_early() -> UserError:
    remedy = "Run it again. If memory ran out, use fewer processes or less text."
    return UserError("a worker process ended early", remedy, ExitCode.INTERRUPTED)


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


def _result_elsewhere(code: str, function: Callable[[Any], Any], task: Any) -> Any:
    if code != _code():
        fault = "machine.scheduler: a worker has other code of this package, another Python or another SentencePiece"
        raise configuration_error(fault, "Install the same on all machines: the text would differ.")
    return function(task)


@cache
def _code() -> str:
    """Return what results depend on beside the task."""
    return f"{digest_of_code()} {platform.python_version()} {version('sentencepiece')} {version('numpy')}"


def digest_of_code() -> str:
    """Return a digest of this package's modules, by which processes notice that their machines have other versions of it."""
    package, digest = Path(__file__).parent, sha256()
    for module in sorted(package.rglob("*.py")):
        digest.update(module.relative_to(package).as_posix().encode() + b"\0" + module.read_bytes())
    return digest.hexdigest()[:12]


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent's thread ends: a thread would not notice that during a call of C++."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
