"""Many tasks in several processes: the results of `map`, errors, and no process left over."""

import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from math import isqrt
from pathlib import Path
from signal import SIGKILL, SIGTERM, raise_signal
from subprocess import DEVNULL, PIPE

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clone import ROOT
from tests.corpus.test_cleaning import cleaned, write_raw_pairs
from tests.refusals import refused
from tests.waiting import wait_for
from transformer_core import processes
from transformer_core.corpus import text
from transformer_core.corpus.cleaning import cleaner
from transformer_core.errors import UserError
from transformer_core.processes import cpu_name, in_child, in_order


@given(st.lists(st.integers(0, 100), max_size=20), st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=10)
def test_results_come_in_the_order_of_the_tasks(numbers: list[int], workers: int) -> None:
    assert list(in_order(isqrt, numbers, workers)) == [isqrt(number) for number in numbers]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(("numbers", "error"), [((16, 25, -3, 36), "must be nonnegative"), ((16, 25), "no more tasks")])
def test_an_error_comes_after_the_results_before_it_and_before_a_later_one(workers: int, numbers: tuple[int, ...], error: str) -> None:
    def tasks() -> Iterator[int]:
        yield from numbers
        raise OSError("no more tasks")

    found: list[int] = []
    with pytest.raises((ValueError, OSError), match=error):
        found.extend(in_order(isqrt, tasks(), workers))
    assert found == [4, 5]


@pytest.mark.parametrize("tasks", [1, 100])
def test_a_process_that_dies_is_an_error(tasks: int) -> None:
    with pytest.raises(UserError, match="a worker process ended early"):
        list(in_order(raise_signal, [SIGKILL] * tasks, 2))


def test_no_process_is_left_when_the_rest_is_not_wanted() -> None:
    results = in_order(isqrt, range(1000), 2)
    assert next(results) == 0
    assert len(multiprocessing.active_children()) == 2
    results.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []


UNREAD = """
import sys
from math import isqrt
from transformer_core.processes import in_order
if __name__ == "__main__":
    results = in_order(isqrt, range(1000), 2)
    print(next(results), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_no_worker_is_left_after_an_end_with_a_generator_still_held_or_a_kill(tmp_path: Path, killed: bool) -> None:
    (tmp_path / "unread.py").write_text(UNREAD)
    with subprocess.Popen([sys.executable, "unread.py"], cwd=tmp_path, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        family = psutil.Process(process.pid).children(recursive=True)
        if killed:
            process.kill()
        errors = process.communicate(timeout=60)[1]
    assert killed or errors == b""
    assert len(family) >= 2
    assert psutil.wait_procs(family, timeout=120)[1] == []


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The file of a scheduler of Dask, and its two workers."""
    file = tmp_path / "scheduler.json"
    options = ("--scheduler-file", str(file), "--no-dashboard", "--host", "127.0.0.1")
    commands = [("scheduler", "--port", "0", *options), *[("worker", "--nthreads", "1", "--no-nanny", *options)] * 2]
    with ExitStack() as stack:
        started = []
        for command in commands:
            path = {**os.environ, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen([Path(sys.executable).with_name("dask"), *command], cwd=tmp_path, env=path, stderr=DEVNULL)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
            wait_for(file.exists, process=process)
        yield str(file), started[1:]


@pytest.mark.slow  # about 10 s: three processes that import Dask
def test_workers_elsewhere_clean_to_the_same_bytes_though_one_is_killed_meanwhile(
    dask: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, (first, _) = dask
    monkeypatch.setattr(text, "PAIRS_PER_CHUNK", 20)
    pairs = [(f"number {number}", f"Nummer {number % 3_000}") for number in range(4_000)]
    write_raw_pairs(tmp_path / "raw", pairs)
    cleaned(tmp_path, name="here", workers=1)

    def killing(*paths: Path) -> Iterator[text.Chunk]:
        for number, chunk in enumerate(text.read_chunks(*paths)):
            if number == 40:
                first.kill()
            yield chunk

    monkeypatch.setattr(cleaner, "read_chunks", killing)
    cleaned(tmp_path, name="elsewhere", workers=scheduler)
    assert first.wait(20) == -SIGKILL
    here, elsewhere = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("here", "elsewhere"))
    assert here == elsewhere
    with pytest.raises(ValueError, match="must be nonnegative"):
        list(in_order(isqrt, [1, -3], scheduler))
    monkeypatch.setattr(processes, "_code", lambda: "of another version")
    with refused(78, "machine.scheduler: a worker has other code .* Install the same on all machines"):
        list(in_order(isqrt, [1], scheduler))


def test_without_dask_or_without_a_scheduler_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(69, r"machine.scheduler: no worker answers at .*/none.json. Start them, or empty the setting"):
        list(in_order(isqrt, [1], str(tmp_path / "none.json")))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with refused(78, r"machine.scheduler: Dask is not installed. Install it with: pip install 'transformer-pipeline\[dask\]'"):
        list(in_order(isqrt, [1], "tcp://127.0.0.1:8786"))


def test_the_cpu_has_a_name_also_where_the_system_does_not_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu_name().strip() == cpu_name() != ""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "processor : 0\nmodel name\t: A  CPU 7\nmodel name : other\n")
    assert cpu_name() == "A CPU 7"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "processor : 0\n")
    assert cpu_name() == (platform.processor() or platform.machine())


def test_a_child_computes_the_result_and_its_error_is_that_of_the_caller() -> None:
    assert in_child(partial(isqrt, 25)) == 5
    with pytest.raises(ValueError, match="must be nonnegative"):
        in_child(partial(isqrt, -3))
    with pytest.raises(UserError, match="a worker process ended early"):
        in_child(partial(raise_signal, SIGKILL))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("number", "code"), [(SIGTERM, 75), (SIGKILL, -SIGKILL)])
def test_a_stop_does_not_wait_for_a_call_of_c_in_a_child(number: int, code: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(IN_C, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(program)], cwd=Path(__file__).parents[1], env={**os.environ, "PYTHONPATH": "."}) as process:
        (child,) = wait_for(lambda: [one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline())])
        wait_for((tmp_path / "program.py.busy").exists)
        process.send_signal(number)
        assert process.wait(20) == code
    child.wait(20)


IN_C = """
import ctypes, sys
from pathlib import Path
from flows.process.signals import stop_on_signals
from transformer_core.errors import Interrupted
from transformer_core.processes import in_child

def sleep():
    Path(__file__ + ".busy").touch()
    ctypes.PyDLL(None).sleep(60)  # It keeps the lock of the interpreter.

if __name__ == "__main__":
    stop_on_signals()
    try:
        in_child(sleep)
    except Interrupted:
        sys.exit(75)
"""
