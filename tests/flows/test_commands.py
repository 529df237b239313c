"""DVC's commands in a repository of one stage that is written by others, or was when they were killed."""

import json
import subprocess
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows.dvc.commands import StageOutput, dvc, failure, repair
from flows.process.progress import resumed_line


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Repo.init(no_scm=True)
    Path("dvc.yaml").write_text("stages: {one: {cmd: echo 1 > one.txt, outs: [one.txt]}}")


def written_by(process: int, command: str) -> None:
    """DVC's record of a command that writes the output of the stage."""
    record = {"write": {str(Path("one.txt").resolve()): {"pid": process, "cmd": command}}, "read": {}}
    Path(".dvc/tmp/rwlock").write_text(json.dumps(record))


def test_a_stage_that_another_dvc_command_runs_is_worth_another_try() -> None:
    """`--wait-for-lock` does not wait for that."""
    with subprocess.Popen(["sleep", "60"]) as other:
        written_by(other.pid, "/usr/my bin/dvc 60")  # With the arguments of that process.
        repair()
        ended = subprocess.run(dvc("repro", "one"), check=False, capture_output=True, text=True)
        other.kill()
    busy = "another DVC command runs a stage in this repository. Wait until it ends, then run again."
    assert failure("one", ended.returncode, ended.stderr.splitlines()[-1]) == (69, f"one: {busy}")


def test_a_killed_command_whose_number_another_process_has_now_is_not_waited_for() -> None:
    """As in a container, or after a restart of the machine. DVC itself would wait for ever: it looks whether there is such a process."""
    with subprocess.Popen(["sleep", "60"]) as other:
        written_by(other.pid, "/usr/bin/dvc repro --single-item one")
        assert subprocess.run(dvc("repro", "one"), check=False, capture_output=True).returncode == 255
        repair()
        subprocess.run(dvc("repro", "one"), check=True, capture_output=True)
        other.kill()
    assert Path("one.txt").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"write": 1}', '{"write": {"a": {"pid": 999999999, "cmd": "dvc repro"}}}'])
def test_a_record_of_dvc_that_is_damaged_or_of_processes_that_have_ended_is_removed(content: str) -> None:
    record = Path(".dvc/tmp/rwlock")
    record.write_text(content)
    repair()
    assert not record.exists()
    record.write_text('{"read": {}}')  # As DVC leaves it.
    repair()
    assert record.exists()


def test_the_lines_of_a_stage_are_passed_on_and_no_advice_of_dvc() -> None:
    written: list[str] = []
    output = StageOutput(written.append)
    lines = [resumed_line(12_345), "going on after update ", "going on after update 7, they say", "update 500 of 2,000: 900 tok/s"]
    for line in [*lines, "\tgit add dvc.lock", " "]:
        output(line)
    assert written == lines
    assert (output.last_line, output.resumed) == (lines[-1], 12_345)
