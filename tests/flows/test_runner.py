import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

REPOSITORY = Path(__file__).parents[2]

STAGE = """
import pathlib, sys, time
from flows.process.runner import run_stage, say
from transformer_core.errors import ExitCode, Interrupted, UserError

def run(params):
    pathlib.Path("running").write_text("yes")
    {body}
    return f"made a model of {{params.download.corpus}}"

raise SystemExit(run_stage("toy", run))
"""


@pytest.fixture(autouse=True)
def _in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())


@pytest.fixture
def started() -> Iterator[list[psutil.Process]]:
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        if process.is_running():
            process.kill()


def stage(body: str) -> list[str]:
    Path("stage.py").write_text(STAGE.format(body=body))
    return [sys.executable, "stage.py"]


def run(body: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(stage(body), capture_output=True, text=True, check=False)


def said() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path(".state/exit/toy.json").read_text())
    return document


def wait_until_running(name: str = "running") -> None:
    deadline = time.monotonic() + 120
    while not Path(name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stage_that_ends_well_says_what_was_made() -> None:
    done = run("pass")
    assert (done.returncode, done.stdout, done.stderr) == (0, "made a model of synthetic\n", "")
    assert said() == {"code": 0, "message": "made a model of synthetic", "remedy": ""}


def test_a_stage_that_ends_well_leaves_how_long_it_took() -> None:
    run("raise UserError('no')")
    assert not Path(".state/times/toy.json").exists()
    run("time.sleep(0.2)")
    assert 0.2 <= json.loads(Path(".state/times/toy.json").read_text())["seconds"] < 60


@pytest.mark.parametrize("code", ["BAD_DATA", "UNAVAILABLE", "INTERRUPTED", "BAD_CONFIGURATION"])
def test_a_user_error_is_one_line_and_its_exit_code(code: str) -> None:
    done = run(f"raise UserError('data/raw/train.de: empty', 'Fill it.', ExitCode.{code})")
    assert done.stderr == "data/raw/train.de: empty. Fill it.\n"
    assert said() == {"code": done.returncode, "message": "data/raw/train.de: empty", "remedy": "Fill it."}
    assert done.returncode == {"BAD_DATA": 65, "UNAVAILABLE": 69, "INTERRUPTED": 75, "BAD_CONFIGURATION": 78}[code]


@pytest.mark.parametrize(("body", "code"), [("pass", 0), ("say('half of it', sys.stderr); raise UserError('no')", 65)])
def test_a_stage_whose_output_nobody_reads_ends_as_if_it_were_read(body: str, code: int) -> None:
    """As after the death of `tee` in `dvc repro 2>&1 | tee log`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(stage(body), stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert (done.returncode, said()["code"]) == (code, code)


def test_a_fault_in_params_yaml_is_found_before_the_stage_runs() -> None:
    Path("params.yaml").write_text("trian: {}\n")
    done = run("pass")
    assert done.returncode == 78
    assert done.stderr.startswith("params.yaml: trian: unknown key")
    assert not Path("running").exists()


def test_a_bug_is_a_traceback_and_exit_code_1() -> None:
    done = run("raise KeyError('warmup')")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert said()["message"] == "toy: KeyError: 'warmup'"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_interrupts_past_a_loop_of_retries(number: signal.Signals, started: list[psutil.Process]) -> None:
    body = """while True:
        try:
            time.sleep(60)
        except Exception:
            pass"""
    process = subprocess.Popen(stage(body), stderr=subprocess.PIPE, text=True)
    started.append(psutil.Process(process.pid))
    wait_until_running()
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 75
    assert error == f"stopped by {number.name}. Run it again to go on.\n"
    assert said()["code"] == 75


def test_a_second_signal_does_not_disturb_the_cleaning_up(started: list[psutil.Process]) -> None:
    body = """try:
        pathlib.Path("trying").write_text("yes")
        time.sleep(60)
    finally:
        pathlib.Path("cleaning").write_text("yes")
        time.sleep(0.5)
        pathlib.Path("clean").write_text("yes")"""
    process = subprocess.Popen(stage(body), stderr=subprocess.PIPE)
    started.append(psutil.Process(process.pid))
    wait_until_running("trying")
    process.terminate()
    wait_until_running("cleaning")
    process.terminate()
    assert process.wait(120) == 75
    assert Path("clean").exists()


def test_the_handlers_of_a_stage_go_before_the_runners(started: list[psutil.Process]) -> None:
    body = """import signal
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    pathlib.Path("installed").write_text("yes")
    while not asked:
        time.sleep(0.01)
    raise Interrupted("state saved at update 40")"""
    process = subprocess.Popen(stage(body), stderr=subprocess.PIPE)
    started.append(psutil.Process(process.pid))
    wait_until_running("installed")
    process.terminate()
    assert process.wait(120) == 75
    assert said()["message"] == "state saved at update 40"


def test_while_a_stage_runs_it_has_not_ended_and_nobody_else_can_run_it(started: list[psutil.Process]) -> None:
    run("pass")
    Path("running").unlink()
    first = subprocess.Popen(stage("time.sleep(60)"), stderr=subprocess.DEVNULL)
    started.append(psutil.Process(first.pid))
    wait_until_running()
    assert not Path(".state/exit/toy.json").exists()

    Path("running").unlink()
    second = run("pass")
    assert second.returncode == 75
    assert second.stderr.startswith(f".state/locks/toy: stage toy is running in process {first.pid}. ")
    assert not Path("running").exists()

    first.kill()
    first.wait(120)
    assert run("pass").returncode == 0


STARTERS = {
    "dvc": "import subprocess; subprocess.run(['sh', '-c', 'exec {}'])",
    "dvc, a shell between": "import subprocess; subprocess.run(['sh', '-c', '{}; :'])",
    "a flow": "from flows.process.child import run_child; run_child('{}'.split(), print)",
    "a flow, dvc between": "from flows.process.child import run_child; run_child(['sh', '-c', 'DVC_STAGE=toy; {}; :'], print)",
}


@pytest.mark.parametrize("starter", STARTERS)
def test_the_death_of_what_started_a_stage_ends_it_after_it_has_saved(starter: str, started: list[psutil.Process]) -> None:
    body = """import os
    try:
        pathlib.Path(f"{os.getpid()}.pid").touch()
        time.sleep(60)
    finally:
        pathlib.Path("saved").touch()"""
    program = STARTERS[starter].format(" ".join(stage(body)))
    told = {"DVC_STAGE": "toy"} if starter.startswith("dvc") else {}
    process = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **told}, stderr=subprocess.DEVNULL)
    wait_until_running()
    while not (found := list(Path().glob("*.pid"))):
        time.sleep(0.02)
    child = psutil.Process(int(found[0].stem))
    started.append(child)
    process.kill()
    process.wait(120)
    child.wait(120)
    assert Path("saved").exists()
    assert said()["code"] == 75


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("preset: tiny\n  heads: 5", "model.heads: 5 heads do not divide d_model 192. Set model.d_k or choose a divisor."),
        ("preset: tiny\n  d_model: 191", "model.d_model: must be even, got 191"),
        ("preset: tiny\n  neighbourhood: 0", "params.yaml: model.neighbourhood: must be a whole number above 0, got 0"),
        ("preset: tiny\n  dropout: -0.1", "params.yaml: model.dropout: must be a number from 0 to below 1, got -0.1"),
        ("preset: tiny\n  cell: gru", "model.cell: the architecture transformer has no such setting"),
        ("preset: bsae", "model.preset: no preset of the architecture transformer is called 'bsae'. Nearest: base"),
    ],
)
def test_a_model_that_cannot_be_built_stops_every_stage_before_it_begins(model: str, fault: str) -> None:
    Path("params.yaml").write_text(Path("params.yaml").read_text().replace("preset: tiny", model))
    ended = run("")
    assert ended.returncode == 78
    assert ended.stderr.startswith(fault)
    assert ended.stderr.count("\n") == 1
    assert not Path("running").exists()
