"""The pipeline on a Prefect server with a worker, and a training over two machines: real servers, workers and processes."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import torch
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from prefect.events.schemas.events import ResourceSpecification
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Completed, Crashed, Running
from safetensors.torch import load_file

from flows.pipeline import pipeline
from flows.places import pools
from flows.process.child import grace_seconds
from flows.process.paths import stages
from flows.sweep import sweep
from tests.clone import ROOT, Clone
from tests.faults.proxy import troubled
from tests.flows.prefect_server import artifacts, ended, lines, start, table, worker_at
from tests.refusals import refused
from tests.waiting import wait_for
from transformer_core.errors import UserError
from transformer_core.files import read_json
from transformer_core.yaml_io import read_yaml

pytestmark = [pytest.mark.slow, pytest.mark.prefect]  # about 6 minutes all together, a minute or two each

HOST = "0.0.0.0"  # Of the Prefect server: a network namespace reaches it, too.
STAGES = list(stages())


def test_everything_is_deployed_before_there_is_a_pool_of_gpus(client: SyncPrefectClient, deployed: str) -> None:
    assert "prefect work-pool create gpu --type kubernetes" in " ".join(deployed.split())
    nightly = client.read_deployment_by_name("pipeline/pipeline")
    assert nightly.global_concurrency_limit is None  # Its lease ends a run whose server was away (docs/cluster.md).
    assert client.read_deployment_by_name("node/training-node").work_pool_name == "local"


def test_the_automation_for_lost_machines_watches_the_flows_of_this_project(client: SyncPrefectClient) -> None:
    (lost,) = read_yaml(ROOT / "flows/places/templates/automations.yaml")["automations"]
    made = client.read_automation(client.create_automation(AutomationCore.model_validate(lost)))
    assert made is not None
    assert isinstance(made.trigger, EventTrigger)
    assert isinstance(made.trigger.match_related, ResourceSpecification)
    assert set(made.trigger.match_related.root["prefect.resource.name"]) == {pipeline.name, pools.node.name, sweep.name}


@pytest.mark.usefixtures("deployed")
def test_a_pool_that_is_not_there_is_one_line_that_says_how_to_make_it(client: SyncPrefectClient) -> None:
    with refused(78, r"Prefect has no work pool 'gpu'\. Create it: prefect work-pool create gpu"):
        pools.find_deployment(client, "gpu")
    client.create_work_pool(WorkPoolCreate(name="gpu", type="process"))
    with pytest.raises(UserError, match="no deployment of the flow node is on work pool 'gpu'"):
        pools.find_deployment(client, "gpu")
    assert pools.find_deployment(client, "local").name == "training-node"


def test_nodes_are_waited_for_while_prefect_has_errors_and_not_for_ever(
    client: SyncPrefectClient, api: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = client.create_flow_run(pools.node, parameters={"stage": "train", "repository": "", "commit": ""}, state=Running())
    with ExitStack() as stack:
        trouble = stack.enter_context(troubled(urlsplit(api).port or 0))
        stack.enter_context(temporary_settings({PREFECT_API_URL: f"{trouble.address}/api"}))
        through = stack.enter_context(get_client(sync_client=True))
        trouble.how = "500"
        with ThreadPoolExecutor() as thread:
            waiting = thread.submit(pools.wait_for_all, through, [run])
            time.sleep(3 * pools.POLL_SECONDS)
            assert not waiting.done()
            client.set_flow_run_state(run.id, Completed(), force=True)
            trouble.how = ""
            waiting.result(60)
        assert re.fullmatch(r"Prefect does not answer: .*500.*\. Trying again for 4:00:00\.\n", capsys.readouterr().err)
        monkeypatch.setattr(pools, "AWAY_SECONDS", 0.0)
        trouble.how = "500"
        with refused(69, "Prefect does not answer: .*500"):
            pools.wait_for_all(through, [run])


@pytest.fixture(scope="module")
def worker_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worker") / "worker.log"


@pytest.fixture(scope="module")
def worker(home: Clone, deployed: str, worker_log: Path) -> Iterator[psutil.Process]:
    assert "'node/training-node' successfully created" in deployed
    with worker_at(home, worker_log) as process:
        yield process


@pytest.fixture(scope="module")
def by_hand(client: SyncPrefectClient, worker: psutil.Process) -> FlowRun:
    assert worker.is_running()
    return ended(client, start(client, overrides={"machine.price_per_hour": 3600.0}))


def test_a_run_by_hand_is_seen_over_the_api(client: SyncPrefectClient, by_hand: FlowRun, home: Clone) -> None:
    assert by_hand.state is not None
    assert by_hand.state.is_completed(), by_hand.state.message
    assert table(client, by_hand.id) == dict.fromkeys(STAGES, "ran")
    made = artifacts(client, by_hand.id)
    rows = json.loads(str(made["pipeline-stages"].data))
    assert all(row["cost"] == pytest.approx(row["seconds"], abs=0.06) for row in rows)  # both are rounded
    assert next(row["megabytes"] for row in rows if row["stage"] == "train") > 0.1
    assert "BLEU **" in str(made["pipeline"].data)
    assert "`mlflow ui --backend-store-uri sqlite:///mlflow.db`, then [the training in MLflow](http://127" in str(made["pipeline"].data)
    with closing(sqlite3.connect(home.root / "mlflow.db")) as record:
        kept = {key for (key,) in record.execute("SELECT key FROM metrics")}
    assert kept >= {f"{what}/{stage}" for what in ("seconds", "megabytes", "cost") for stage in STAGES}
    assert float(str(made["train-progress"].data)) == 100
    wait_for(lambda: any(line.startswith("update 20 of 20: ") for line in lines(client, by_hand.id)), "no line of the training", pause=0.5)
    assert "price_per_hour: 3600" not in (home.root / "params.yaml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("by_hand")
def test_a_setting_that_is_wrong_is_told_by_the_run_and_by_its_worker(
    client: SyncPrefectClient, worker: psutil.Process, worker_log: Path, home: Clone
) -> None:
    assert worker.is_running()
    run = ended(client, start(client, overrides={"train.updates": 0}))
    fault = "params.yaml: train.updates: must be greater than 0, got 0 (exit code 78)"
    assert run.state is not None
    assert run.state.message == fault
    wait_for(lambda: fault in worker_log.read_text(encoding="utf-8"), "the worker's log does not say it")
    assert "updates: 0" not in (home.root / "params.yaml").read_text(encoding="utf-8")


def test_a_cancelled_training_saves_leaves_nobody_and_says_so(client: SyncPrefectClient, home: Clone, worker: psutil.Process) -> None:
    home.run("dvc", "repro", "binarize")
    long = {"train.updates": 20000, "train.save_every": 5000, "train.validate_every": 5000, "train.seed": 8}
    run = start(client, overrides=long, first_stage="train")
    wait_for(lambda: "train-progress" in artifacts(client, run), "no progress", pause=0.5)
    began = time.monotonic()
    client.set_flow_run_state(run, Cancelling())
    state = ended(client, run).state
    assert state is not None
    assert state.is_cancelled()
    wait_for(lambda: not worker.children(recursive=True), "processes are left")
    assert time.monotonic() - began < grace_seconds()
    saved = read_json(home.root / ".state/exit/train.json")
    assert saved["code"] == 75
    advice = wait_for(lambda: artifacts(client, run).get("pipeline-ended"), "no advice was left", pause=0.5)
    assert "run it again to resume" in str(advice.data)
    wait_for(lambda: saved["message"] in " ".join(lines(client, run)), "the log does not say what was saved", pause=0.5)


@pytest.mark.usefixtures("worker")
def test_the_rows_of_a_sweep_are_trained_on_the_machines_of_a_pool(client: SyncPrefectClient, home: Clone) -> None:
    home.set({"machine": {"pools": {"train": "local"}}})
    assert "1 trainings, 0 of them done, 1 to run" in home.run(sys.executable, "-m", "flows.sweep", "params", "train.seed=11")
    assert "train.seed=11" in (home.root / "results/sweeps/params-train.seed=11/table.md").read_text(encoding="utf-8")
    nodes = [one for one in client.read_flow_runs() if one.name == "train-0"]
    assert [one.state_name for one in nodes] == ["Completed"]
    assert nodes[0].parameters["settings"]["train"]["seed"] == 11
    home.set({"machine": {"pools": {}}})


@pytest.fixture
def second_machine() -> Iterator[tuple[list[str], str]]:
    """A network namespace at the other end of a cable: what runs a command there, and the address of this machine as seen from it."""
    name, ours, theirs = f"tr{os.getpid()}", f"ve{os.getpid()}a", f"ve{os.getpid()}b"

    def ip(*arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr.strip()}")

    try:
        ip("netns", "add", name)
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        ip("address", "add", "10.77.0.1/24", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "address", "add", "10.77.0.2/24", "dev", theirs)
        ip("-n", name, "link", "set", theirs, "up")
        yield ["ip", "netns", "exec", name], "10.77.0.1"
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)  # Its end of the cable goes, and so does ours.


@pytest.mark.usefixtures("worker")
def test_a_training_over_two_machines_is_that_of_one_and_leaves_nothing_to_do_at_home(
    client: SyncPrefectClient, api: str, home: Clone, second_machine: tuple[list[str], str], tmp_path: Path
) -> None:
    """Server and home are here, and so is one worker; the other is in a network namespace. Each node has a clone of its own."""
    there, address = second_machine
    client.create_work_pool(WorkPoolCreate(name="machines", type="process"))
    deployment = client.read_deployment_by_name("node/training-node")
    client.update_deployment(deployment.id, DeploymentUpdate(work_pool_name="machines"))
    home.set({"train": {"seed": 9}})
    alone = home.copy(tmp_path / "alone")  # Before the run, or it would take what the machines have made.
    over_two = {"machine.pools": {"train": "machines"}, "machine.nodes": 2}
    shared = {"TRANSFORMER_STATE": str(tmp_path / "state")}
    pool = ("--pool", "machines", "--limit", "1")
    with alone.beside("dvc", "repro", "--force", "--single-item", "train"), ExitStack() as stack:
        for machine, on in (("here", []), ("there", there)):
            at = {"PREFECT_API_URL": api.replace("127.0.0.1", address), "TRANSFORMER_CLONES": str(tmp_path / machine), **shared}
            stack.enter_context(worker_at(home, tmp_path / f"{machine}.log", *pool, on=on, **at))
        run = ended(client, start(client, overrides=over_two, first_stage="train", last_stage="train"))
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    assert table(client, run.id)["train"] == "ran in machines"
    runs = [one for one in client.read_flow_runs() if f"pipeline={run.id}" in one.tags]
    nodes = {one.name: one for one in runs if one.state and one.state.is_completed()}
    assert sorted(nodes) == ["train-0", "train-1"], "\n".join(line for one in runs for line in lines(client, one.id))
    assert any("on 2 x cpu: " in line for line in lines(client, nodes["train-0"].id))
    # A group that lost a node to the load of the machine was started again, perhaps with the ranks the other way round.
    assert all(list((tmp_path / machine).glob("*-?")) for machine in ("here", "there"))
    assert "up to date" in home.run("dvc", "repro", "train")
    weights = [load_file(clone.root / "models/checkpoints/update-00000020.safetensors") for clone in (home, alone)]
    assert weights[0].keys() == weights[1].keys()
    for name in weights[0]:
        assert weights[0][name].dtype == torch.float64
        assert torch.allclose(weights[0][name], weights[1][name], rtol=1e-10, atol=1e-10), name


@pytest.mark.usefixtures("deployed")
def test_a_training_whose_worker_is_stopped_leaves_nobody_and_its_state(
    client: SyncPrefectClient, home: Clone, worker: psutil.Process
) -> None:
    """The last test of this file: a worker that is stopped kills its runs at once."""
    home.run("dvc", "repro", "binarize")
    home.run(sys.executable, "-m", "transformer_core.cli", "states", "--remove", "all")
    long = {"train.updates": 20000, "train.save_every": 10, "train.validate_every": 5000, "train.seed": 12}
    run = start(client, overrides=long, first_stage="train")
    wait_for(lambda: list((home.root / ".state").glob("*/state-*.pt")), "no state was saved")
    below = worker.children(recursive=True)
    worker.terminate()
    worker.wait(60)
    _, left = psutil.wait_procs(below, timeout=grace_seconds())
    assert not left
    client.set_flow_run_state(run, Crashed(), force=True)  # As the automation of docs/cluster.md does: nobody else tells Prefect.
    assert "update " in home.run(sys.executable, "-m", "transformer_core.cli", "states")
