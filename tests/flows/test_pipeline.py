import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, State

from flows import pipeline as module
from flows.journal import Journal
from flows.pipeline import pipeline, stage_names
from flows.tracking import connect, sync
from transformer_core.errors import UserError
from transformer_core.files import write_json

REPOSITORY = Path(__file__).parents[2]

# Three stages, the last first. What one does besides writing its output stands in a file that DVC does not know.
DVC_YAML = """
stages:
  publish:
    cmd: python stage.py publish
    deps: [evaluate.txt]
    outs: [results/published.json]
  evaluate:
    cmd: python stage.py evaluate
    deps: [train.txt]
    outs: [evaluate.txt]
  train:
    cmd: python stage.py train
    outs: [train.txt]
"""
STAGE = """
import os, pathlib, sys, time
from flows.runner import run_stage
from transformer_core.errors import ExitCode, Interrupted, UserError
from transformer_core.files import read_json, write_json
name = sys.argv[1]

def run(params):
    with open(f"{name}.runs", "a") as file:
        file.write("x")
    behaviour = pathlib.Path(f"{name}.behaviour")
    if behaviour.exists():
        exec(behaviour.read_text())
    if name == "publish":
        write_json(pathlib.Path("results/published.json"), {"name": "toy", "version": "1", "run_id": read_json(pathlib.Path("run.json"))})
    else:
        pathlib.Path(f"{name}.txt").write_text("made")
    return f"made {name}"

raise SystemExit(run_stage(name, run))
"""
# Python that trains until it is told to stop, saves, and says which process it is.
TRAIN_UNTIL_STOPPED = """
pathlib.Path(f"{os.getpid()}.pid").touch()
try:
    time.sleep(120)
finally:
    time.sleep(0.5)
    pathlib.Path("saved").touch()
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DVC repository of three toy stages as the working directory, and an MLflow registry that has the model of the last."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], check=True)
    Path("dvc.yaml").write_text(DVC_YAML)
    Path("stage.py").write_text(STAGE)
    Path("params.yaml").write_bytes((REPOSITORY / "params.yaml").read_bytes())
    monkeypatch.setattr(module, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(module, "in_registry", lambda: True)
    write_json(Path("run.json"), "")
    return tmp_path


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


def behave(stage: str, code: str) -> None:
    Path(f"{stage}.behaviour").write_text(code)


def runs(stage: str) -> int:
    path = Path(f"{stage}.runs")
    return len(path.read_text()) if path.exists() else 0


def run_pipeline() -> State[int]:
    return pipeline(return_state=True)


def flow_run(client: SyncPrefectClient, state: State[int]) -> FlowRun:
    assert state.state_details.flow_run_id is not None
    return client.read_flow_run(state.state_details.flow_run_id)


def artifact(client: SyncPrefectClient) -> str:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["pipeline"])))
    return str(max(found, key=lambda one: one.created).data)


def table(markdown: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in markdown.split("\n") if line.startswith("|")][2:]
    return [[row[0].strip(), row[1].strip()] for row in rows]


def test_the_stages_come_in_the_order_of_dvc_yaml_s_dependencies(toy: Path) -> None:
    assert stage_names(toy) == ["train", "evaluate", "publish"]


def test_a_folder_that_is_no_dvc_repository_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not inside of a DVC repository") as raised:
        stage_names(tmp_path)
    assert raised.value.exit_code == 78


def test_a_broken_dvc_yaml_is_a_clear_error(toy: Path) -> None:
    Path("dvc.yaml").write_text("stages:\n  train:\n    command: python\n")
    with pytest.raises(UserError, match=r"dvc\.yaml"):
        stage_names(toy)


@pytest.mark.prefect
@pytest.mark.usefixtures("toy", "prefect_server")
def test_every_stage_is_a_task_that_ran_and_then_one_that_was_cached(client: SyncPrefectClient) -> None:
    state = run_pipeline()
    assert state.is_completed()
    assert table(artifact(client)) == [["train", "ran"], ["evaluate", "ran"], ["publish", "ran"]]
    assert run_pipeline().is_completed()
    assert table(artifact(client)) == [["train", "cached"], ["evaluate", "cached"], ["publish", "cached"]]
    assert [runs(stage) for stage in ("train", "evaluate", "publish")] == [1, 1, 1]


@pytest.mark.prefect
@pytest.mark.usefixtures("toy", "prefect_server")
def test_the_lines_of_a_stage_reach_the_log_of_its_run(client: SyncPrefectClient) -> None:
    behave("train", r"print('update 100\rupdate 200', flush=True); print('on standard error', file=sys.stderr, flush=True)")
    state = run_pipeline()
    deadline = time.monotonic() + 20
    wanted = {"update 200", "on standard error", "made train"}
    while True:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run(client, state).id])))
        messages = {log.message for log in logs if log.task_run_id}
        if wanted <= messages:
            return
        assert time.monotonic() < deadline, messages
        time.sleep(0.2)


@pytest.mark.prefect
@pytest.mark.usefixtures("toy", "prefect_server")
@pytest.mark.parametrize("code", ["BAD_DATA", "BAD_CONFIGURATION"])
def test_what_a_second_attempt_cannot_mend_fails_at_once_with_the_stage_s_own_line(
    code: str, client: SyncPrefectClient, capfd: pytest.CaptureFixture[str]
) -> None:
    behave("evaluate", f"raise UserError('data/raw/test.de:7: empty', 'Fill it.', ExitCode.{code})")
    state = run_pipeline()
    number = {"BAD_DATA": 65, "BAD_CONFIGURATION": 78}[code]
    assert state.is_failed()
    assert state.message == f"evaluate: data/raw/test.de:7: empty. Fill it. (exit code {number})"
    assert state.result(raise_on_failure=False) == number
    assert runs("evaluate") == 1
    assert runs("publish") == 0
    assert table(artifact(client)) == [["train", "ran"], ["evaluate", "failed"]]
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.prefect
@pytest.mark.usefixtures("toy", "prefect_server")
@pytest.mark.parametrize(
    "end",
    [
        "raise UserError('mirror: away', '', ExitCode.UNAVAILABLE)",
        "raise Interrupted('state saved at update 40')",
        "os.kill(os.getpid(), 9)",
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), 15)",
    ],
    ids=["69", "75", "137", "143"],
)
def test_what_may_pass_is_tried_again(end: str) -> None:
    behave("train", f"if len(open('train.runs').read()) < 3: {end}")
    assert run_pipeline().is_completed()
    assert runs("train") == 3


@pytest.mark.prefect
@pytest.mark.usefixtures("toy", "prefect_server")
def test_trying_again_ends_after_three_times(capfd: pytest.CaptureFixture[str]) -> None:
    behave("train", "os.kill(os.getpid(), 9)")
    state = run_pipeline()
    assert state.result(raise_on_failure=False) == 137
    assert state.message is not None
    assert state.message.startswith("train: failed to reproduce 'train': failed to run: python stage.py train, exited with")
    assert runs("train") == 4
    assert "NoneType" not in "".join(capfd.readouterr())


@pytest.mark.prefect
@pytest.mark.usefixtures("toy", "prefect_server")
def test_a_bug_is_not_tried_again_and_its_traceback_is_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    behave("train", "raise KeyError('warmup')")
    state = run_pipeline()
    assert state.result(raise_on_failure=False) == 1
    assert state.message == "train: KeyError: 'warmup'. The traceback is in the log. (exit code 1)"
    assert runs("train") == 1
    assert "behaviour.read_text()" in "".join(capfd.readouterr())


@pytest.mark.prefect
@pytest.mark.usefixtures("toy", "prefect_server")
def test_a_cached_publish_runs_again_when_the_registry_has_not_got_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: SyncPrefectClient
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    Journal("f00d")
    sync(os.environ["MLFLOW_TRACKING_URI"])
    mlflow = connect(os.environ["MLFLOW_TRACKING_URI"])
    run = mlflow.search_runs(["1"])[0].info
    write_json(Path("run.json"), run.run_id)

    run_pipeline()
    run_pipeline()
    assert runs("publish") == 2
    mlflow.create_registered_model("toy")
    mlflow.create_model_version("toy", source=run.artifact_uri, run_id=run.run_id)
    run_pipeline()
    assert runs("publish") == 2
    assert f"/#/experiments/1/runs/{run.run_id}" in artifact(client)

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(module, "RETRIES", 0)
    assert run_pipeline().result(raise_on_failure=False) == 69


@pytest.mark.prefect
@pytest.mark.usefixtures("toy", "prefect_server")
def test_the_artifact_shows_the_bleu_and_says_when_it_is_synthetic(client: SyncPrefectClient) -> None:
    write_json(Path("results/metrics.json"), {"bleu": 86.412, "corpus": "toys", "synthetic": True})
    run_pipeline()
    assert "BLEU **86.41** on the test set of toys (synthetic)" in artifact(client)


def start_flow(server: str | None) -> "subprocess.Popen[str]":
    address = {"PREFECT_API_URL": server} if server else {}
    return subprocess.Popen(
        [sys.executable, "-m", "flows.pipeline"],
        env={**os.environ, **address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_stage() -> psutil.Process:
    deadline = time.monotonic() + 90
    while not (found := list(Path().glob("*.pid"))):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return psutil.Process(int(found[0].stem))


def processes_of(session: int) -> list[psutil.Process]:
    return [
        process for process in psutil.process_iter() if _session_of(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    ]


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


@pytest.fixture
def nobody_left() -> Iterator[list[int]]:
    """Sessions of which nobody may be left; whoever is, is killed."""
    sessions: list[int] = []
    yield sessions
    left = [process for session in sessions for process in processes_of(session)]
    for process in left:
        process.kill()
    assert left == []


@pytest.mark.prefect
@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("how", ["SIGTERM to the flow", "SIGINT to the flow", "SIGTERM to the group"])
def test_a_signal_ends_every_process_after_it_has_saved(how: str, prefect_server: str, nobody_left: list[int]) -> None:
    behave("train", TRAIN_UNTIL_STOPPED)
    process = start_flow(prefect_server)
    nobody_left.append(process.pid)
    stage = wait_for_stage()
    if how == "SIGTERM to the group":
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.send_signal(signal.SIGINT if "INT" in how else signal.SIGTERM)
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 75, output
    assert not stage.is_running()
    assert Path("saved").exists()
    assert output.rstrip().split("\n")[-1].endswith("Run it again to go on.")


@pytest.mark.prefect
@pytest.mark.slow
@pytest.mark.usefixtures("toy")
def test_without_a_server_it_runs_and_is_stopped_just_as_well(nobody_left: list[int]) -> None:
    """About 40 seconds: three temporary servers."""
    behave("train", TRAIN_UNTIL_STOPPED)
    stopped = start_flow(None)
    nobody_left.append(stopped.pid)
    wait_for_stage()
    os.killpg(stopped.pid, signal.SIGINT)  # Ctrl-C: the temporary server hears it too.
    output, _ = stopped.communicate(timeout=90)
    assert stopped.returncode == 75, output
    assert Path("saved").exists()

    Path("train.behaviour").unlink()
    behave("evaluate", "raise UserError('data/raw/test.de:7: empty', 'Fill it.')")
    failed = start_flow(None)
    nobody_left.append(failed.pid)
    output, _ = failed.communicate(timeout=90)
    assert failed.returncode == 65, output
    assert output.count("Traceback") == 0

    Path("evaluate.behaviour").unlink()
    Path("publish.behaviour").write_text("os._exit(0)")  # No output: DVC itself must fail.
    failed = start_flow(None)
    nobody_left.append(failed.pid)
    output, _ = failed.communicate(timeout=90)
    assert failed.returncode == 255, output
    assert "results/published.json" in output
