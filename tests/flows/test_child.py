import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.process.child import grace_seconds, run_child
from tests.flows.stages import set_params
from tests.waiting import processes, wait_for

pytestmark = pytest.mark.usefixtures("empty_directory")

# A stage that takes a moment to save, below a shell that does not replace itself by it (as below dvc).
STAGE = """
import pathlib, signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(0.5)
    pathlib.Path("saved").write_text("all of it")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").write_text("yes")
print("training", flush=True)
time.sleep(60)
"""

RUN_CHILD = """
import signal, sys
from flows.process.child import run_child
def stop(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
run_child(sys.argv[1:], lambda line: print(line, flush=True))
"""


def stage_below_a_shell() -> list[str]:
    Path("stage.py").write_text(STAGE)
    return ["sh", "-c", f"{sys.executable} stage.py; echo shell is done"]


def stage_processes() -> list[psutil.Process]:
    return processes(lambda process: process.cwd() == str(Path.cwd()) and process.pid != os.getpid())


# A script of a shell, its lines and its exit code: that of a shell for a signal. Of a line that is redrawn only the last state arrives.
OUTPUTS = [
    ("echo one; echo two >&2; printf 'thr'; sleep 0.1; printf 'ee\\nfour'; exit 65", ["one", "two", "three", "four"], 65),
    ("printf '10%%\\r50%%\\r100%%\\nwindows\\r\\n'; kill -9 $$", ["100%", "windows"], 128 + signal.SIGKILL),
]


@pytest.mark.parametrize(("script", "output", "code"), OUTPUTS)
def test_lines_of_both_streams_arrive_whole_and_in_order(script: str, output: list[str], code: int) -> None:
    lines: list[str] = []
    assert run_child(["sh", "-c", script], lines.append) == code
    assert lines == output


@pytest.mark.parametrize("orphaned", [False, True])
def test_an_exception_ends_the_whole_tree_after_it_has_saved_also_what_has_lost_its_parent(orphaned: bool) -> None:
    lines: list[str] = []

    def stop_at_training(line: str) -> None:
        lines.append(line)
        if line == "training":
            if orphaned:
                stage = next(process for process in stage_processes() if "stage.py" in process.cmdline())
                psutil.Process(stage.ppid()).kill()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child(stage_below_a_shell(), stop_at_training)
    assert Path("saved").read_text() == "all of it"
    assert "saving" in lines
    assert wait_for(lambda: not stage_processes())


def test_a_process_that_does_not_end_within_the_grace_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMER_GRACE_SECONDS", "0.5")
    with pytest.raises(subprocess.TimeoutExpired):
        run_child(["sh", "-c", "trap '' TERM; sleep 60; true"], print, limit_seconds=0.5)  # The child, too, ignores it.
    assert wait_for(lambda: not stage_processes())


def test_a_schedulers_time_to_save_goes_before_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSFORMER_GRACE_SECONDS", raising=False)
    assert grace_seconds() == 120
    set_params(machine={"grace_seconds": 30})
    assert grace_seconds() == 30
    monkeypatch.setenv("TRANSFORMER_GRACE_SECONDS", "45.5")
    assert grace_seconds() == 45.5


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_cut_off_the_saving(second: signal.Signals) -> None:
    caller = subprocess.Popen([sys.executable, "-c", RUN_CHILD, *stage_below_a_shell()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_for(Path("ready").exists)
    caller.terminate()
    assert caller.stdout is not None
    while b"saving" not in caller.stdout.readline():
        pass
    caller.send_signal(second)
    caller.communicate(timeout=120)
    assert caller.returncode != 0
    assert Path("saved").exists()
    assert wait_for(lambda: not stage_processes())
