import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterId, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import State

from flows import pipeline as module
from flows.dvc import commands
from flows.dvc.commands import stages_up_to
from flows.pipeline import pipeline, training_link
from flows.places.work_pool import prefect_client
from flows.process import patience
from flows.process.child import grace_seconds
from flows.process.paths import SCORES
from flows.process.runner import StageError, record_run
from flows.record.costs import costs, expected
from flows.record.documents import CHECKPOINT_CONFIG
from flows.record.run import RunRecord
from flows.record.sending import sync
from flows.record.server import connect
from flows.record.summary import Outcome, summarize
from tests.clone import git
from tests.flows.publishing import FIGURES, training
from tests.flows.servers import with_tables
from tests.flows.stages import changed, set_params
from tests.refusals import refused
from tests.waiting import processes, wait_for
from transformer_core import recipes
from transformer_core.config import load_params
from transformer_core.errors import UserError
from transformer_core.files import WORKTREES, read_json, write_json

# Three stages. Code that one runs besides writing its output is in a file that DVC does not know.
DVC_YAML = """
stages:
  train:
    cmd: python stage.py train
    outs: [train.txt]
  evaluate:
    cmd: python stage.py evaluate
    deps: [train.txt]
    outs: [evaluate.txt]
  publish:
    cmd: python stage.py publish
    deps: [evaluate.txt]
    outs: [publish.txt]
"""
STAGE = """
import os, pathlib, sys, time
from flows.process.runner import run_here, run_stage
from transformer_core.errors import ExitCode, Interrupted, UserError
name = sys.argv[1]

def run(params):
    with open(f"{name}.runs", "a") as file:
        file.write("x")
    behaviour = pathlib.Path(f"{name}.behaviour")
    if behaviour.exists():
        exec(behaviour.read_text())
    pathlib.Path(f"{name}.txt").write_text("made")
    return f"made {name}"

raise SystemExit(run_stage(name, lambda: run_here(name, run)))
"""
# Code that trains until it is stopped, saves, and leaves its process id.
TRAIN_UNTIL_STOPPED = """
pathlib.Path(f"{os.getpid()}.pid").touch()
try:
    time.sleep(120)
finally:
    time.sleep(0.5)
    pathlib.Path("saved").touch()
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC repository of three toy stages."""
    folder = tmp_path_factory.mktemp("toy")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=folder, check=True)
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "stage.py").write_text(STAGE)
    (folder / "params.yaml").write_text(recipes.read("tatoeba"), encoding="utf-8")
    for name in (".gitignore", ".dvcignore"):
        (folder / name).write_text(".state/\n*.runs\n__pycache__/\n")
    git("add", "-A", at=folder)
    git("commit", "-q", "-m", "toy", at=folder)
    return folder


@pytest.fixture
def toy(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working directory."""
    folder = shutil.copytree(template, tmp_path / "toy")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.05)
    return folder


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


def with_prefect(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that runs flows in the toy repository."""
    return pytest.mark.prefect(pytest.mark.usefixtures("toy", "prefect_server")(test))


def behave(stage: str, code: str) -> None:
    Path(f"{stage}.behaviour").write_text(code)


def runs(stage: str) -> int:
    path = Path(f"{stage}.runs")
    return len(path.read_text()) if path.exists() else 0


def code_of(state: State[Any]) -> int:
    """The exit code of a run that failed."""
    error = state.result(raise_on_failure=False)
    assert isinstance(error, StageError)
    assert str(error).count("(exit code") == 1
    return error.exit_code


def run_pipeline(last_stage: str = "publish") -> State[int]:
    return pipeline(last_stage=last_stage, return_state=True)


def artifact(client: SyncPrefectClient) -> str:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["pipeline"])))
    return str(max(found, key=lambda one: one.created).data)


def shown(client: SyncPrefectClient) -> list[tuple[str, str | None, int]]:
    """The tasks of the last run: name, state, and how many of the other tasks an arrow leads from."""
    run = max(client.read_flow_runs(), key=lambda one: str(one.created))
    assert run.name == f"tatoeba en-de tiny, seed 1, {recipes.load('tatoeba').train.updates:,} updates"
    tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    return sorted((one.name, one.state_name, len(one.task_inputs.get("wait_for", []))) for one in tasks)


def table(markdown: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in markdown.split("\n") if line.startswith("|")][2:]
    return [[row[0].strip(), row[1].strip()] for row in rows]


@pytest.mark.usefixtures("toy")
def test_the_stages_are_those_of_dvc_yaml_up_to_the_last_or_the_fault_is_one_line() -> None:
    assert stages_up_to("evaluate") == ["train", "evaluate"]
    assert stages_up_to(None) == ["train", "evaluate", "publish"]
    with refused(78, "last_stage: no stage is called 'trian'. Stages: train, evaluate, publish."):
        stages_up_to("trian")
    for text in ("", "stages:", "stages: [train]"):
        Path("dvc.yaml").write_text(text)
        with refused(78, "dvc.yaml: has no stages"):
            stages_up_to(None)


@with_prefect
def test_every_stage_is_a_task_that_ran_and_then_one_that_was_cached(client: SyncPrefectClient) -> None:
    assert run_pipeline(last_stage="evaluate").is_completed()
    assert table(artifact(client)) == [["train", "ran"], ["evaluate", "ran"]]
    assert run_pipeline().is_completed()
    assert table(artifact(client)) == [["train", "cached"], ["evaluate", "cached"], ["publish", "ran"]]
    assert shown(client) == [("evaluate", "Cached", 1), ("publish", "Completed", 1), ("train", "Cached", 0)]
    assert [runs(stage) for stage in ("train", "evaluate", "publish")] == [1, 1, 1]


@with_prefect
def test_a_failure_is_the_stages_own_line_and_its_output_is_in_the_log(client: SyncPrefectClient, caplog: pytest.LogCaptureFixture) -> None:
    behave("evaluate", r"print('line 100\rline 200', flush=True); raise UserError('data/raw/test.de:7: empty', 'Fill it.')")
    state = run_pipeline()
    assert state.is_failed()
    assert state.message == "evaluate: data/raw/test.de:7: empty. Fill it. (exit code 65)"
    assert code_of(state) == 65
    assert (runs("evaluate"), runs("publish")) == (1, 0)
    assert table(artifact(client)) == [["train", "ran"], ["evaluate", "failed"]]
    assert "Traceback" not in caplog.text

    def messages() -> set[str]:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[state.state_details.flow_run_id])))
        return {log.message for log in logs if log.task_run_id}

    said = {"> python stage.py evaluate", "line 200", "data/raw/test.de:7: empty. Fill it."}
    wait_for(lambda: said <= messages(), pause=0.2)


@with_prefect
def test_a_stage_is_tried_until_a_bug_whose_traceback_is_in_the_log_and_runs_again_later(caplog: pytest.LogCaptureFixture) -> None:
    tries = ["raise UserError('mirror: away', '', ExitCode.UNAVAILABLE)", "raise Interrupted('state saved')", "os.kill(os.getpid(), 9)"]
    behave("train", f"exec([*{tries}, 'raise KeyError(\"warmup\")', ''][len(open('train.runs').read()) - 1])")
    state = run_pipeline(last_stage="train")
    assert code_of(state) == 1
    assert state.message == "train: KeyError: 'warmup'. The traceback is in the log. (exit code 1)"
    assert runs("train") == 4
    assert "behaviour.read_text()" in caplog.text
    assert caplog.text.count("Trying again in 0 seconds") == 3
    assert run_pipeline(last_stage="train").is_completed()
    assert runs("train") == 5


@with_prefect
def test_a_run_with_other_settings_leaves_params_yaml_and_outputs_as_they_are_and_goes_on_where_it_failed(toy: Path) -> None:
    """Its stages take the untracked `behaviour` from here."""
    before = Path("params.yaml").read_bytes()
    assert run_pipeline(last_stage="train").is_completed()
    behave("evaluate", "raise UserError('a corpus of seed ' + str(params.train.seed))")
    state = pipeline(overrides={"train.seed": 7}, return_state=True)
    assert state.message == "evaluate: a corpus of seed 7 (exit code 65)"
    (left,) = (toy / WORKTREES).glob("*/")
    assert (left / "train.runs").exists()
    behave("evaluate", "pathlib.Path(os.environ['SEEN']).write_text(str(params.train.seed))")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEEN", str(toy / "seen.runs"))
        assert pipeline(overrides={"train.seed": 7}, return_state=True).is_completed()
    assert Path("seen.runs").read_text() == "7"
    assert not left.exists()
    assert Path("params.yaml").read_bytes() == before
    assert not Path("evaluate.txt").exists()
    assert load_params(left.with_suffix(".yaml")).train.seed == 7
    assert Path.cwd() == toy


@with_prefect
def test_a_live_run_marked_as_crashed_runs_again(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, prefect_server: str) -> None:
    """As the automation for lost machines does after the server was away."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_CHECKS", 0.2)
    code = f"""from prefect.states import Crashed; from prefect.client.orchestration import get_client
os.environ['PREFECT_API_URL'], run = {prefect_server!r}, os.environ['TRANSFORMER_FLOW_RUN_ID']
with get_client(sync_client=True) as client:
    client.set_flow_run_state(run, Crashed(), force=True)
    while client.read_flow_run(run).state_name != 'Running': time.sleep(0.1)"""
    behave("train", code)
    state = run_pipeline()
    assert state.is_completed(), state.message
    names = [str(one.name) for one in client.read_flow_run_states(state.state_details.flow_run_id)]
    assert names[-3:] == ["Crashed", "Running", "Completed"]


@with_prefect
def test_a_run_that_someone_has_deleted_is_one_line() -> None:
    with refused(78, "Prefect refuses: "), prefect_client() as client:
        client.read_flow_run(UUID(int=1))


@with_prefect
def test_a_stage_has_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """That its processes save and end then is tested with `run_child`."""
    limits: list[float | None] = []

    def over(_command: object, _output: object, limit_seconds: float | None, *_: object) -> int:
        limits.append(limit_seconds)
        raise subprocess.TimeoutExpired([], 1)

    monkeypatch.setattr(commands, "run_child", over)
    set_params(machine={"limit_hours": 0.5, "patience_hours": 1e-6})
    assert (code_of(state := run_pipeline()), limits) == (75, [1800, 1800])
    assert state.message == "train: ended after machine.limit_hours (0.5) (exit code 75)"


@pytest.mark.usefixtures("toy")
def test_wrong_settings_are_one_line_before_prefect_is_reached(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def reached() -> None:
        raise UserError("Prefect is reached")

    monkeypatch.setattr(module, "reach_prefect", reached)
    monkeypatch.setattr(module, "stop_on_signals", lambda: None)  # Those of this process stay.
    before = Path("params.yaml").read_bytes()
    for updates, line in (("x", "params.yaml: train.updates: must be "), ("900", "Prefect is reached\n")):
        module.main(["--set", f"train.updates={updates}"])
        assert capsys.readouterr().err.startswith(line)
        assert Path("params.yaml").read_bytes() == before


def test_the_training_is_found_in_mlflow(mlflow_store: str, model_directory: Path) -> None:
    RunRecord(id="c0ffee", tags={"fingerprint": "f00d"}).end()
    sync(mlflow_store)
    found = training(connect(mlflow_store)).info.run_id
    assert training_link() == ""
    config = read_json(model_directory / "config.json")
    for run, there in (("c0ffee", True), ("beef", False)):
        write_json(CHECKPOINT_CONFIG, {**config, "training": {**config["training"], "run": run}})
        assert training_link().partition("?")[0].endswith(f"/runs/{found}") == there


@pytest.mark.usefixtures("mlflow_store")
def test_the_summary_has_sizes_score_and_a_link_or_the_failure_and_no_older_score() -> None:
    write_json(SCORES, {**FIGURES, "bleu": 86.412, "corpus": "toys"})
    Path("dvc.lock").write_text("stages:\n  train:\n    outs: [{path: a, size: 1500000}, {path: b, size: 20000}]\n")

    def summary(link: str, command: str, *outcomes: Outcome) -> str:
        return summarize({one.stage: one for one in outcomes}, link, command, {})

    done = Outcome("train", "ran in gpu", 0, 1800), Outcome("evaluate", "ran", 0, 1234.56)
    text = summary("http://mlflow/#/runs/1", "", *done)
    assert "| train | ran in gpu | 1,800.0 | 1.52 |\n| evaluate | ran | 1,234.6 | 0.00 |" in text
    assert "BLEU **86.41** on the test set of toys" in text
    assert "(http://mlflow/#/runs/1)" in text
    assert summary("http://x", "mlflow ui", *done).endswith("`mlflow ui`, then [the training in MLflow](http://x)")
    text = summary("", "", Outcome("train", "failed", 65, 1.0, "train: data/raw/train.de:7: empty"))
    assert "**train: data/raw/train.de:7: empty**" in text
    assert "BLEU" not in text
    assert "MLflow" not in text


@pytest.mark.usefixtures("default_params")
def test_a_run_says_what_it_will_cost_by_earlier_runs_and_its_summary_what_it_has() -> None:
    params = changed(load_params(), "machine", price_per_hour=3.6)
    assert expected(["clean"], params) == "Expected: not known of clean"
    record_run("clean", params, 60.0, 0.25)
    record_run("train", changed(params, "train", updates=params.train.updates // 2), 1000.0)
    text = "Expected: about 34 min 20 s, price 2.06, by earlier runs here; not known of bpe"
    assert expected(["clean", "bpe", "train"], params) == text
    assert expected(["train"], changed(params, "model", layers=1)).endswith("of train; transformer-core estimate measures the speed")
    assert expected([], params) == "Expected: nothing to do"
    outcomes = {"clean": Outcome("clean", "ran", 0, 60.0), "bpe": Outcome("bpe", "cached", 0, 1.0)}
    summary = summarize(outcomes, "", "", costs({"clean": 60.0}, params))
    assert "| stage |  | seconds | MB | price | kWh |" in summary
    table = "| clean | ran | 60.0 | 0.00 | 0.06 | 0.25 |\n| bpe | cached | 1.0 | 0.00 |  |  |\n"
    assert f"{table}\nTogether 1 min 00 s, price 0.06, 0.25 kWh" in summary


def start_flow(server: str | None) -> "subprocess.Popen[str]":
    command, address = [sys.executable, "-m", "flows.pipeline"], {"PREFECT_API_URL": server} if server else {}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env={**os.environ, **address}, text=True, start_new_session=True, **streams)


def processes_of(flow: "subprocess.Popen[str]") -> list[psutil.Process]:
    return processes(lambda process: os.getsid(process.pid) == flow.pid)


@pytest.fixture
def train(toy: Path) -> Iterator[Callable[[str | None], "subprocess.Popen[str]"]]:
    """Starts the flow with a server, or with none, and waits for its training; in the end none of its processes may be left."""
    flows: list[subprocess.Popen[str]] = []

    def start(server: str | None) -> "subprocess.Popen[str]":
        behave("train", TRAIN_UNTIL_STOPPED)
        if server is None:
            with_tables(Path(os.environ["PREFECT_HOME"]))
        flows.append(start_flow(server))
        wait_for(lambda: list(toy.glob("*.pid")), process=flows[0])
        return flows[0]

    yield start
    _, left = psutil.wait_procs(processes_of(flows[0]), timeout=10)  # One may be about to end.
    for process in left:
        process.kill()
    assert left == []


Train = Callable[[str | None], "subprocess.Popen[str]"]


@pytest.mark.prefect
@pytest.mark.parametrize("send", [os.kill, pytest.param(os.killpg, marks=pytest.mark.slow)], ids=["to the flow", "to the group"])
def test_a_sigterm_ends_every_process_after_it_has_saved(send: Callable[[int, int], None], prefect_server: str, train: Train) -> None:
    process = train(prefect_server)
    send(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=grace_seconds() + 60)
    assert process.returncode == 75, output
    assert Path("saved").exists()
    assert any(line.endswith("Run it again to resume.") for line in output.split("\n")[-4:])  # Prefect may still have a word after it.


@pytest.mark.usefixtures("toy")
def test_a_configured_server_that_is_unreachable_is_one_line_and_exit_code_69() -> None:
    process = start_flow("http://127.0.0.1:9/api")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 69
    assert output.startswith("Prefect at http://127.0.0.1:9/api/ is unreachable: ")
    assert output.count("\n") == 1
    assert runs("train") == 0


@pytest.mark.prefect
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_server_a_signal_to_the_group_still_ends_well(number: signal.Signals, train: Train) -> None:
    """About 10 seconds for a temporary server. SIGINT to the group is Ctrl-C; SIGTERM is what Slurm sends, and it ends the server too."""
    process = train(None)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=grace_seconds() + 60)
    assert process.returncode == 75, output
    assert Path("saved").exists()
    assert (number == signal.SIGTERM) or "Traceback" not in output


@pytest.mark.prefect
@pytest.mark.slow
def test_without_a_server_a_killed_flow_leaves_no_process(train: Train) -> None:
    """About 10 seconds for a temporary server, which cannot see that the flow is gone."""
    process = train(None)
    process.kill()
    process.wait()
    wait_for(lambda: not processes_of(process), "the end of all processes")
    assert Path("saved").exists()
