"""The pipeline on a Prefect server with a worker, and a training over two machines: real servers, workers and processes."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from prefect.events.schemas.events import ResourceSpecification
from prefect.states import Cancelling, Crashed

from flows.pipeline import pipeline
from flows.places.work_pool import stage
from flows.process.child import grace_seconds
from flows.process.paths import stages
from tests.clone import ROOT, Clone
from tests.flows.prefect_server import artifacts, ended, lines, start, worker_at
from tests.flows.test_pipeline import table
from tests.waiting import wait_for
from transformer_core.files import read_json
from transformer_core.yaml_io import read_yaml

pytestmark = [pytest.mark.slow, pytest.mark.prefect]  # about 6 minutes all together, a minute or two each

STAGES = list(stages())


@pytest.mark.usefixtures("deployed")
def test_everything_is_deployed_and_nothing_starts_by_itself(prefect: SyncPrefectClient) -> None:
    nightly = prefect.read_deployment_by_name("pipeline/pipeline")
    assert nightly.global_concurrency_limit is None  # Its lease ends a run whose server was away (docs/cluster.md).
    assert [schedule.active for schedule in nightly.schedules] == [False]
    assert prefect.read_deployment_by_name("pipeline/new-data").parameters == {"from_champion": False}
    assert prefect.read_deployment_by_name("stage/stage").work_pool_name == "local"


def test_the_automation_for_lost_machines_is_demanded_and_watches_this_projects_flows(prefect: SyncPrefectClient, home: Clone) -> None:
    assert "no automation ends runs without a heartbeat" in home.run("transformer-core", "doctor", "--cluster", code=69)
    (lost,) = read_yaml(ROOT / "flows/places/templates/automations.yaml")["automations"]
    made = prefect.read_automation(prefect.create_automation(AutomationCore.model_validate(lost)))
    assert made is not None
    assert isinstance(made.trigger, EventTrigger)
    assert isinstance(made.trigger.match_related, ResourceSpecification)
    assert set(made.trigger.match_related.root["prefect.resource.name"]) == {pipeline.name, stage.name}
    home.run("transformer-core", "doctor", "--cluster")


@pytest.fixture(scope="module")
def worker_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker") / "worker.log"


@pytest.fixture(scope="module")
def worker(home: Clone, deployed: str, worker_log: Path) -> Iterator[psutil.Process]:
    assert "'stage/stage' successfully created" in deployed
    with worker_at(home, worker_log) as process:
        yield process


@pytest.fixture(scope="module")
def by_hand(prefect: SyncPrefectClient, worker: psutil.Process) -> FlowRun:
    assert worker.is_running()
    return ended(prefect, start(prefect, overrides={"machine.price_per_hour": 3600.0}))


def test_a_run_by_hand_is_seen_over_the_api(prefect: SyncPrefectClient, by_hand: FlowRun, home: Clone) -> None:
    assert by_hand.state is not None
    assert by_hand.state.is_completed(), by_hand.state.message
    made = artifacts(prefect, by_hand.id)
    assert dict(table(str(made["pipeline"].data))) == dict.fromkeys(STAGES, "ran")
    assert "BLEU **" in str(made["pipeline"].data)
    command = f"`mlflow ui --backend-store-uri sqlite:///{home.root}/mlflow.db`, then [the training in MLflow](http://127"
    assert command in str(made["pipeline"].data)
    wait_for(lambda: any(line.startswith("update 20 of 20: ") for line in lines(prefect, by_hand.id)), "no line of the training", pause=0.5)
    assert "price_per_hour: 3600" not in (home.root / "params.yaml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("by_hand")
def test_a_setting_that_is_wrong_is_told_by_the_run_and_by_its_worker(
    prefect: SyncPrefectClient, worker: psutil.Process, worker_log: Path, home: Clone
) -> None:
    assert worker.is_running()
    run = ended(prefect, start(prefect, overrides={"train.updates": 0}))
    fault = "params.yaml: train.updates: must be greater than 0, got 0 (exit code 78)"
    assert run.state is not None
    assert run.state.message == fault
    wait_for(lambda: fault in worker_log.read_text(encoding="utf-8"), "the worker's log does not say it")
    assert "updates: 0" not in (home.root / "params.yaml").read_text(encoding="utf-8")


def test_a_cancelled_training_saves_leaves_nobody_and_says_so(prefect: SyncPrefectClient, home: Clone, worker: psutil.Process) -> None:
    home.run("dvc", "repro", "binarize")
    long = {"train.updates": 20000, "train.save_every": 5000, "train.validate_every": 5000, "train.seed": 8}
    run = start(prefect, overrides=long)
    wait_for(lambda: any(line.startswith("update ") for line in lines(prefect, run)), "no progress", pause=0.5)
    prefect.set_flow_run_state(run, Cancelling())
    state = ended(prefect, run).state
    assert state is not None
    assert state.is_cancelled()
    wait_for(lambda: not worker.children(recursive=True), "processes are left")
    (report,) = home.root.glob(".state/worktrees/*/.state/exit/train.json")
    saved = read_json(report)
    assert saved["code"] == 75
    wait_for(lambda: saved["message"] in " ".join(lines(prefect, run)), "the log does not say what was saved", pause=0.5)


def test_a_stage_runs_on_a_worker_of_another_pool_in_this_folder(prefect: SyncPrefectClient, home: Clone, api: str, tmp_path: Path) -> None:
    assert api
    home.run("dvc", "repro", "binarize")
    home.set({"train": {"seed": 11}, "machine": {"places": {"train": {"on": "prefect", "pool": "gpu"}}}})
    prefect.create_work_pool(WorkPoolCreate(name="gpu", type="process"))
    assert "no deployment of the flow stage is on work pool 'gpu'" in home.run(sys.executable, "-m", "flows.stages", "train", code=78)
    prefect.update_deployment(prefect.read_deployment_by_name("stage/stage").id, DeploymentUpdate(work_pool_name="gpu"))
    with worker_at(home, tmp_path / "gpu.log", "--pool", "gpu"):
        said = home.run("dvc", "repro", "train")
    assert re.search(r"train: job [0-9a-f-]+ of prefect, log \.state/jobs/train-", said)
    assert "update 20 of 20: " in said
    assert "up to date" in home.run("dvc", "repro", "train")
    (run,) = (one for one in prefect.read_flow_runs() if one.name.startswith("train-"))
    assert run.state_name == "Completed"
    assert any("update 20 of 20: " in line for line in lines(prefect, run.id))
    home.set({"machine": {"places": {}}})


@pytest.mark.usefixtures("deployed")
def test_a_training_whose_worker_stops_leaves_nobody_and_its_state(prefect: SyncPrefectClient, home: Clone, worker: psutil.Process) -> None:
    """The last test of this file: a worker that is stopped kills its runs at once."""
    home.run("dvc", "repro", "binarize")
    home.run(sys.executable, "-m", "transformer_core.cli", "states", "--remove", "all")
    long = {"train.updates": 20000, "train.save_every": 10, "train.validate_every": 5000, "train.seed": 12}
    run = start(prefect, overrides=long)
    wait_for(lambda: list((home.root / ".state").glob("*/state-*.pt")), "no state was saved")
    below = worker.children(recursive=True)
    worker.terminate()
    worker.wait(60)
    _, left = psutil.wait_procs(below, timeout=grace_seconds())
    assert not left
    prefect.set_flow_run_state(run, Crashed(), force=True)  # As the automation of docs/cluster.md does: nobody else tells Prefect.
    assert "update " in home.run(sys.executable, "-m", "transformer_core.cli", "states")
