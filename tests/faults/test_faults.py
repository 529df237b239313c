"""Some rounds of ``make faults``: one of each kind of fault, and what counts as a problem."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults.faults import MOUNTING, Scene
from tests.faults.pipeline import Ended, Home, Result
from tests.faults.rounds import Rounds, differences, traceback_in, wrong_with

# The number of a fault's round, by which its stage, command and moment are drawn: decode by DVC, evaluate by the flow, and twice in
# a training by DVC. A round at an early stage runs the rest of the pipeline twice, and a retry of the flow waits.
KINDS = {"disk full: results": 22, "damaged vocabulary": 1, "kill -9 of a rank, twice": 4}


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rounds]:
    made = Rounds(tmp_path_factory.mktemp("faults"), tmp_path_factory.mktemp("logs"), ("train", "decode", "evaluate"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", KINDS)
def test_after_a_fault_the_same_command_ends_as_if_nothing_had_happened(rounds: Rounds, fault: str) -> None:
    if fault.startswith("disk full") and subprocess.run([*MOUNTING, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let every user mount a file system")
    row = rounds.play(fault, seed=1, number=KINDS[fault])
    assert row.problems == "", (rounds.logs / f"round-{row.round}.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(("process", "code", "struck"), [("flows.stages train", -signal.SIGKILL, True), ("", 0, False)])
def test_a_kill_that_meets_no_process_has_struck_nothing(process: str, code: int, struck: bool, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.root.mkdir()
    undisturbed: Any = SimpleNamespace(seconds={"train": 0})
    unused: Any = None
    # Without such a process the kill waits for the end.
    command = (sys.executable, "-c", f"import time; time.sleep({60 * struck})", *process.split())
    scene = Scene(undisturbed, home, "train", Random(1), command, prefect=unused)
    assert scene.kill("flows.stages train").code == code
    assert scene.struck is struck


def test_what_a_fault_has_changed_is_found() -> None:
    losses = Counter({("loss", 20): 1, ("loss", 40): 1})
    expected = Result({"model.safetensors": "a", "test.hyp": "b"}, losses, {"home/data/a", "home/data/b"})
    found = Result({"model.safetensors": "c", "test.hyp": "b"}, Counter({("loss", 20): 2}), {"home/data/a", "tmp/stray"})
    assert differences(expected, expected) == []
    points, files = "points: {('loss', 20): 2, ('loss', 40): 0}", ["more files: ['tmp/stray']", "files missing: ['home/data/b']"]
    assert differences(expected, found) == ["different: ['model.safetensors']", points, *files]


def test_what_a_user_should_not_meet_is_found() -> None:
    assert wrong_with([Ended(75, "stopped"), Ended(0, "done")]) == []
    failed = Ended(0, "Traceback (most recent call last):\n  line\nKeyError: 1\n", ["python"])
    assert wrong_with([failed]) == ["try 1: left ['python']", "try 1: traceback: KeyError: 1"]
    logged = "12:00:00.000 | INFO    | Task run 'train' - "
    assert traceback_in(f"{logged}Traceback (most recent call last):\n{logged}  line\n{logged}KeyError: 1\n") == "KeyError: 1"
    assert traceback_in("[rank1]: Traceback (most recent call last):\n[rank1]:   line\n[rank1]: KeyError: 1\n") == "KeyError: 1"
    assert wrong_with([Ended(1, "no space\nERROR: no room")]) == ["not recovered: exit code 1: ERROR: no room"]
