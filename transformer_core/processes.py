"""The cores of this machine, and a parallel `map` over processes, with the results in the order of the tasks."""

import os
import platform
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.util import Finalize
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from transformer_core.errors import ExitCode, UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

_AHEAD = 2
_BYTES_PER_WORKER = 4 << 20


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

    Task n goes to process n modulo `workers`, and few tasks wait for each process, so memory is bounded. The function, tasks and results
    are pickled. The processes end with this one, even if it is killed.

    Raises:
        UserError: exit code 75; a signal ended a process, as the kernel does when memory runs out.
        RuntimeError: a process died otherwise. An error in `function` or `tasks` is also raised here, after the results of earlier tasks.
    """
    if workers <= 1:
        yield from map(function, tasks)
        return
    with _running(function, workers) as running:
        coming = iter(tasks)
        sent = received = 0
        while True:
            if sent - received == workers * _AHEAD:
                yield _result(*running[received % workers])
                received += 1
            try:
                task = next(coming)
            except Exception as error:
                for number in range(received, sent):
                    yield _result(*running[number % workers])
                if isinstance(error, StopIteration):
                    return
                raise
            with suppress(BrokenPipeError, ConnectionResetError):  # The process has died; `_result` raises for it.
                running[sent % workers][0].send(task)
            sent += 1


@contextmanager
def _running(function: Callable[[Any], Any], workers: int) -> Iterator[list[tuple[Connection, SpawnProcess]]]:
    # Spawned, not forked: the caller may have threads, and a fork would keep the ends of the other pipes open.
    context = get_context("spawn")
    running: list[tuple[Connection, SpawnProcess]] = []
    closings: list[Finalize] = []
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, function), daemon=True)
            process.start()
            theirs.close()
            running.append((ours, process))
            # At exit Python joins processes. If the generator was not exhausted or closed, they end only once the pipes are closed.
            closings.append(Finalize(None, ours.close, exitpriority=0))
        yield running
    finally:
        for closing in closings:
            closing()
        for _, process in running:
            process.join()


def _result(connection: Connection, process: SpawnProcess) -> Any:
    try:
        fine, value = connection.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        code = process.exitcode or 0
        if code < 0:
            remedy = "Run it again. If memory ran out, use fewer processes."
            raise UserError(f"a worker process was ended by {signal.Signals(-code).name}", remedy, ExitCode.INTERRUPTED) from None
        raise RuntimeError(f"a worker process died with exit code {code}") from None
    if not fine:
        raise value
    return value


def _work(connection: Connection, function: Callable[[Any], Any]) -> None:
    """Process tasks until the pipe is closed or broken. Stop signals are ignored: the parent handles them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tasks: SimpleQueue[tuple[Any] | None] = SimpleQueue()
    # A thread receives tasks while one is processed; otherwise both processes could block on full pipes.
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    try:
        while (task := tasks.get()) is not None:
            try:
                answer = True, function(*task)
            except Exception as error:
                answer = False, error
            connection.send(answer)
    except (BrokenPipeError, ConnectionResetError):
        pass


def _receive(connection: Connection, tasks: "SimpleQueue[tuple[Any] | None]") -> None:
    try:
        while True:
            tasks.put((connection.recv(),))
    except (EOFError, OSError):
        tasks.put(None)
