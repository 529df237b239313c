"""A stage's process: exit code, report, times, signals, and the death of the processes that started it."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from socket import gethostname
from typing import Any

import psutil
import pytest

from flows.dvc.commands import failure
from flows.process.exits import in_words
from flows.process.runner import StageError, last_run, past_runs, record_run
from flows.process.signals import STOP_SIGNALS
from tests.clone import ROOT
from tests.flows.stages import Ended, changed, stage_here
from tests.waiting import wait_for
from transformer_core.config import Params, load_params
from transformer_core.errors import ExitCode, Interrupted, UserError
from transformer_core.files import read_json, write_json, write_text
from transformer_core.yaml_io import read_yaml

pytestmark = pytest.mark.usefixtures("default_params")

STAGE = """
import pathlib, sys, time
from flows.process.runner import echo, run_here, run_stage
from transformer_core.errors import ExitCode, Interrupted, UserError

def run(params):
    pathlib.Path("running").write_text("yes")
    {body}
    return f"made a model of {{params.download.corpus}}"

raise SystemExit(run_stage("toy", lambda: run_here("toy", run)))
"""


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


def here(error: BaseException | None = None, seconds: float = 0, name: str = "toy") -> Ended:
    """A stage in this process; it raises the error, if there is one."""

    def body(params: Params) -> str:
        Path("running").touch()
        time.sleep(seconds)
        if error is not None:
            raise error
        return f"made a model of {params.download.corpus}"

    return stage_here(name, body)


def report() -> Any:
    return read_json(Path(".state/exit/toy.json"))


def test_a_stage_that_succeeds_says_what_was_made_and_leaves_how_long_it_took() -> None:
    assert here(UserError("no")).returncode == 65
    assert not Path(".state/times/toy.json").exists()
    assert here(seconds=0.2) == (0, "made a model of tatoeba\n", "")
    assert report() == {"code": 0, "message": "made a model of tatoeba", "remedy": ""}
    assert 0.2 <= read_json(Path(".state/times/toy.json"))[0]["seconds"] < 60


ENDS = [
    (UserError("data/raw/train.de: empty", "Fill it.", ExitCode.BAD_DATA), 65, "data/raw/train.de: empty", "Fill it."),
    (Interrupted("state saved at update 40"), 75, "state saved at update 40", "Run it again to resume."),
    (MemoryError(), 78, "decode: out of memory", "Lower decode.batch_tokens or decode.beam, or use a machine with more."),
]


@pytest.mark.parametrize(("error", "code", "message", "remedy"), ENDS)
def test_a_stage_that_fails_prints_one_line_and_leaves_a_report(error: BaseException, code: int, message: str, remedy: str) -> None:
    assert here(error, name="decode") == (code, "", f"{message}. {remedy}\n")
    assert read_json(Path(".state/exit/decode.json")) == {"code": code, "message": message, "remedy": remedy}


@pytest.mark.parametrize(("stage", "code"), [("bpe", 78), ("toy", 0)])
def test_settings_that_are_edited_while_their_stage_runs_are_not_recorded_with_its_outputs(stage: str, code: int) -> None:
    edit = 'p = pathlib.Path("params.yaml"); p.write_text(p.read_text().replace("vocab_size: ", "vocab_size: 1"))'
    command = [sys.executable, "-c", STAGE.format(body=edit).replace('"toy"', repr(stage))]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == code
    if code:
        fault = "params.yaml: section bpe was edited while stage bpe ran with the previous settings"
        assert done.stderr == f"{fault}. Run again, with or without the edit; without it a training is not repeated.\n"


@pytest.mark.parametrize("name", ["compare", "pipeline", "retention", "scores", "status", "sweep", "tracking", "translate", "watch"])
def test_wrong_arguments_are_one_line_and_bad_configuration(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_module(f"flows.{name}").main(["--wrong"]) == 78
    line = rf"python -m flows\.{name}: .+\. See: python -m flows\.{name} --help\n"
    assert re.fullmatch(line, capsys.readouterr().err)


def test_a_stage_that_is_not_there_is_one_line_and_bad_configuration() -> None:
    done = subprocess.run([sys.executable, "-m", "flows.stages", "trian"], capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert re.fullmatch(r"python -m flows\.stages: .+\. See: python -m flows\.stages --help\n", done.stderr)


def seconds_of(stage: str, params: Params) -> float | None:
    run = last_run(stage, params)
    return run and run.seconds


def test_the_seconds_of_a_stage_are_known_for_equal_settings_up_to_its_own() -> None:
    params = load_params()
    assert seconds_of("bpe", params) is None
    for seconds in (1.0, 61.26):
        record_run("bpe", params, seconds)
    record_run("bpe", changed(params, "bpe", seed=8), 3.0, 0.5)
    assert seconds_of("bpe", params) == 61.3
    assert [(run.seconds, run.kwh) for run in past_runs("bpe")] == [(3.0, 0.5), (61.3, None), (1.0, None)]
    assert seconds_of("bpe", changed(params, "clean", max_words=7)) is None
    assert seconds_of("bpe", changed(params, "bpe", seed=7)) is None
    record_run("train", params, 1.0)
    assert seconds_of("train", changed(changed(params, "decode", beam=9), "machine", devices=8)) == 1.0
    assert seconds_of("train", changed(params, "model", layers=1)) is None
    for damage in ("", "[]", "{", "[1]", '{"seconds": 1, "settings": {}}', '[{"settings": 1}]', '[{"seconds": "x"}]'):
        Path(".state/times/bpe.json").write_text(damage, encoding="utf-8")
        assert seconds_of("bpe", params) is None


def test_the_energy_of_a_stage_is_metered_where_codecarbon_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a module of its name: the real one takes four seconds to start."""
    tracker = "lambda **options: nullcontext(Namespace(final_emissions_data=Namespace(energy_consumed=0.25)))"
    imports = "from argparse import Namespace\nfrom contextlib import nullcontext\n"
    (tmp_path / "codecarbon.py").write_text(f"{imports}OfflineEmissionsTracker = {tracker}")
    monkeypatch.syspath_prepend(str(tmp_path))
    here()
    sys.modules.pop("codecarbon", None)  # It would be found again by the tests that come after.
    assert [run.kwh for run in past_runs("toy")] == [0.25]


def test_the_error_of_a_stage_is_the_same_after_pickling_as_prefect_stores_it() -> None:
    error = pickle.loads(pickle.dumps(StageError(137, "train: killed\x1b")))
    assert (error.exit_code, str(error)) == (137, r"train: killed\x1b (exit code 137)")
    assert [in_words(code) for code in (137, 200)] == ["ended by SIGKILL", "exit code 200"]


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"code": 65}', '{"code": "x", "message": "", "remedy": ""}'])
def test_a_damaged_report_of_an_exit_tells_nothing(damage: str) -> None:
    write_text(Path(".state/exit/train.json"), damage)
    line = "failed to reproduce 'train': failed to run: x, exited with 75"
    assert failure("train", 255, f"ERROR: {line}") == (75, f"train: {line}")


def test_a_failed_stage_never_counts_as_done() -> None:
    write_json(Path(".state/exit/train.json"), {"code": 0, "message": "made", "remedy": ""})
    code, reason = failure("train", 255, "ERROR: output 'models/checkpoints' does not exist")
    assert code
    assert reason == "train: output 'models/checkpoints' does not exist"


def stop(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_interrupts_past_a_loop_of_retries_and_a_second_one_does_not_disturb_the_clean_up(number: signal.Signals) -> None:
    def body(_: Params) -> str:
        try:
            while True:
                with suppress(Exception):
                    stop(number)
                    time.sleep(60)
        finally:
            stop(number)
            Path("clean").touch()

    before = signal.signal(number, signal.SIG_DFL)  # `nohup make test` ignores SIGHUP.
    try:
        assert stage_here("toy", body) == (75, "", f"stopped by {number.name}. Run it again to resume.\n")
    finally:
        signal.signal(number, before)
    assert report()["code"] == 75
    assert Path("clean").exists()


def test_a_stop_while_a_stage_is_imported_waits_until_it_is() -> None:
    with subprocess.Popen([sys.executable, "-m", "flows.stages", "decode"], stderr=subprocess.PIPE, text=True) as process:
        masks = Path(f"/proc/{process.pid}/status")
        wait_for(lambda: blocks(masks.read_text(), signal.SIGINT), process=process)
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (None, "stopped by SIGINT. Run it again to resume.\n")
    assert process.returncode == 75


def blocks(status: str, number: signal.Signals) -> bool:
    """Whether a process blocks a signal, by its /proc/PID/status."""
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_nohup_keeps_a_stage_running_when_the_terminal_is_closed(started: list[psutil.Process]) -> None:
    process = subprocess.Popen(["nohup", *stage("while not pathlib.Path('end').exists(): time.sleep(0.05)")], stderr=subprocess.DEVNULL)
    started.append(psutil.Process(process.pid))
    wait_for(Path("running").exists)
    process.send_signal(signal.SIGHUP)
    Path("end").touch()
    assert process.wait(60) == 0


def test_a_running_stage_has_no_exit_report_and_cannot_be_started_again(started: list[psutil.Process]) -> None:
    here()
    Path("running").unlink()
    first = subprocess.Popen(stage("time.sleep(60)"), stderr=subprocess.DEVNULL)
    started.append(psutil.Process(first.pid))
    wait_for(Path("running").exists)
    assert not Path(".state/exit/toy.json").exists()

    Path("running").unlink()
    second = here()
    assert second.returncode == 69
    assert second.stderr.startswith(f".state/locks/toy: stage toy is running in process {first.pid} on {gethostname()}. ")
    assert not Path("running").exists()

    first.kill()
    first.wait(120)
    assert here().returncode == 0


NAMED = 'TRANSFORMER_STARTERS="$TRANSFORMER_STARTERS $PPID"'
IN_DVC_YAML = read_yaml(ROOT / "dvc.yaml")["vars"][0]["stage"].replace('python -m flows.stages "$0"', "{}")
STARTED_BY = {
    "dvc": f"import subprocess; subprocess.run(['sh', '-c', {IN_DVC_YAML!r}])",
    "a flow, dvc between": f"from flows.process.child import run_child; run_child(['sh', '-c', '''{NAMED} {{}}; :'''], print)",
}


@pytest.mark.parametrize("starter", STARTED_BY)
def test_the_death_of_what_started_a_stage_ends_it_after_it_has_saved(starter: str, started: list[psutil.Process]) -> None:
    body = """import os
    try:
        pathlib.Path(f"{os.getpid()}.pid").touch()
        time.sleep(60)
    finally:
        pathlib.Path("saved").touch()"""
    program = STARTED_BY[starter].format(" ".join(stage(body)))
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    found = wait_for(lambda: list(Path().glob("*.pid")))
    child = psutil.Process(int(found[0].stem))
    started.append(child)
    process.kill()
    process.wait(120)
    child.wait(120)
    assert Path("saved").exists()
    assert report()["code"] == 75


def test_a_stage_whose_starter_died_before_it_could_look_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    starter = subprocess.Popen(["true"])
    starter.wait()
    monkeypatch.setenv("TRANSFORMER_STARTERS", f"{os.getpid()} {starter.pid}")
    assert subprocess.run(stage("time.sleep(60)"), stderr=subprocess.DEVNULL, timeout=50, check=False).returncode == 75
