"""The pipeline on a Prefect server with a worker, and a training over two machines: real servers, workers and processes."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import psutil
import pytest
import requests
import torch
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import Artifact, FlowRun
from prefect.client.schemas.schedules import CronSchedule
from prefect.states import Cancelling
from safetensors.torch import load_file

from flows.child import GRACE_SECONDS
from flows.cluster import find_deployment
from tests.clone import Clone, tiny_clone
from transformer_core.errors import UserError
from transformer_core.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.prefect]  # about 6 minutes all together, a minute or two each

LONGEST_SECONDS = 300.0
STAGES = ["download", "clean", "bpe", "binarize", "train", "average", "decode", "evaluate", "publish"]
Found = TypeVar("Found")


def wait_for(look: Callable[[], Found | None], what: str) -> Found:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, what
        time.sleep(0.5)
    return found


@contextmanager
def running(*command: str, log: Path, **settings: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is ended by its id, with a grace time."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **settings)  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Where the pipeline lives: a tiny clone with a DVC remote, a folder."""
    folder = tmp_path_factory.mktemp("cluster")
    made = tiny_clone(folder / "home")
    short = {"updates": 20, "save_every": 10, "validate_every": 20, "bleu_sentences": 2, "precision": "float64"}
    short |= {"tokens_per_update": 640, "tokens_per_microbatch": 160}
    made.set({"train": short, "machine": {"devices": 1}})
    made.run("dvc", "remote", "add", "--default", "store", str(folder / "store"))
    made.commit("a remote")
    return made


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, home: Clone) -> Iterator[str]:
    """The address of a Prefect server of its own, in the environment of what the tests start too."""
    folder = tmp_path_factory.mktemp("prefect")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/api"
    here = {
        "PREFECT_HOME": str(folder),
        "PREFECT_API_URL": address,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }
    here |= {"TRANSFORMER_CLONES": str(folder / "clones")}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in here.items():
            patch.setenv(name, value)
        home.environment |= here
        server = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        process = stack.enter_context(running(*server, log=folder / "server.log"))

        def healthy() -> bool:
            assert process.poll() is None, (folder / "server.log").read_text()
            try:
                return requests.get(f"{address}/health", timeout=5).ok
            except requests.RequestException:
                return False

        wait_for(healthy, "the server did not start")
        yield address


@pytest.fixture(scope="module")
def client(api: str) -> Iterator[SyncPrefectClient]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        yield client


@pytest.fixture(scope="module")
def deployed(home: Clone, client: SyncPrefectClient) -> str:
    """What was said when the deployments of prefect.yaml were made."""
    client.create_work_pool(WorkPoolCreate(name="local", type="process"))
    return home.run("prefect", "--no-prompt", "deploy", "--all")


@pytest.fixture(scope="module")
def worker(home: Clone, deployed: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[psutil.Process]:
    assert "'node/training-node' successfully created" in deployed
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "local"]
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    with running(*command, log=log, cwd=home.root, env=home.environment) as process:
        yield psutil.Process(process.pid)


def start(client: SyncPrefectClient, **parameters: object) -> UUID:
    deployment = client.read_deployment_by_name("pipeline/pipeline")
    return client.create_flow_run_from_deployment(deployment.id, parameters=parameters).id


def ended(client: SyncPrefectClient, run: UUID) -> FlowRun:
    def look() -> FlowRun | None:
        found = client.read_flow_run(run)
        return found if found.state and found.state.is_final() else None

    return wait_for(look, "the run did not end")


def lines(client: SyncPrefectClient, run: UUID) -> list[str]:
    found: list[str] = []
    while page := client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run])), limit=200, offset=len(found)):
        found += [log.message for log in page]
    return found


def artifacts(client: SyncPrefectClient, run: UUID) -> dict[str, Artifact]:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run])))
    return {str(one.key): one for one in found}


def table(client: SyncPrefectClient, run: UUID) -> dict[str, str]:
    """What was done in each stage."""
    return {row["stage"]: row["done"] for row in json.loads(str(artifacts(client, run)["pipeline-stages"].data))}


def test_everything_is_deployed_before_there_is_a_pool_of_gpus(client: SyncPrefectClient, deployed: str) -> None:
    assert "prefect work-pool create gpu --type kubernetes" in " ".join(deployed.split())
    pipeline = client.read_deployment_by_name("pipeline/pipeline")
    assert [schedule.schedule.cron for schedule in pipeline.schedules] == ["0 3 * * *"]
    assert pipeline.global_concurrency_limit is not None
    assert pipeline.global_concurrency_limit.limit == 1
    assert client.read_deployment_by_name("node/training-node").work_pool_name == "local"


@pytest.mark.usefixtures("deployed")
def test_a_pool_that_is_not_there_is_one_line_that_says_how_to_make_it(client: SyncPrefectClient) -> None:
    with pytest.raises(UserError, match=r"Prefect has no work pool 'gpu'\. Create it: prefect work-pool create gpu") as raised:
        find_deployment(client, "gpu")
    assert raised.value.exit_code == 78
    client.create_work_pool(WorkPoolCreate(name="gpu", type="process"))
    with pytest.raises(UserError, match="no deployment of the flow node is on work pool 'gpu'"):
        find_deployment(client, "gpu")
    assert find_deployment(client, "local").name == "training-node"


@pytest.fixture(scope="module")
def by_hand(client: SyncPrefectClient, worker: psutil.Process) -> FlowRun:
    assert worker.is_running()
    return ended(client, start(client, overrides={"train.seed": 7, "machine.price_per_hour": 3600.0}))


def test_a_run_by_hand_is_seen_over_the_api(client: SyncPrefectClient, by_hand: FlowRun, home: Clone) -> None:
    assert by_hand.state is not None
    assert by_hand.state.is_completed(), by_hand.state.message
    assert table(client, by_hand.id) == dict.fromkeys(STAGES, "ran")
    made = artifacts(client, by_hand.id)
    rows = json.loads(str(made["pipeline-stages"].data))
    assert all(row["cost"] == pytest.approx(row["seconds"], abs=0.06) for row in rows)  # both are rounded
    assert next(row["megabytes"] for row in rows if row["stage"] == "train") > 0.1
    assert "BLEU **" in str(made["pipeline"].data)
    assert "/runs/" in str(made["training-in-mlflow"].data)
    with closing(sqlite3.connect(home.root / "mlflow.db")) as record:
        kept = {key for (key,) in record.execute("SELECT key FROM metrics")}
    assert kept >= {f"{what}/{stage}" for what in ("seconds", "megabytes", "cost") for stage in STAGES}
    assert float(str(made["train-progress"].data)) == 100
    wait_for(lambda: any(line.startswith("update 20 of 20: ") for line in lines(client, by_hand.id)), "no line of the training")
    assert "  seed: 7" in (home.root / "params.yaml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("by_hand")
def test_a_run_by_cron_finds_everything_cached(client: SyncPrefectClient) -> None:
    """Waits for the next full minute."""
    deployment = client.read_deployment_by_name("pipeline/pipeline")
    (schedule,) = client.create_deployment_schedules(deployment.id, [(CronSchedule(cron="* * * * *"), True)])
    try:
        scheduled = wait_for(
            lambda: [run for run in client.read_flow_runs() if run.auto_scheduled and run.state and not run.state.is_scheduled()],
            "no run was scheduled",
        )
    finally:
        client.delete_deployment_schedule(deployment.id, schedule.id)
    run = ended(client, scheduled[0].id)
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    assert table(client, run.id) == dict.fromkeys(STAGES, "cached")
    # The server has these as the run's own times: nine stages of nothing, each with a DVC, and the flow around them.
    print(f"a run of nothing took {run.total_run_time.total_seconds():.1f} s")


def processes_below(worker: psutil.Process) -> list[psutil.Process]:
    return [process for process in worker.children(recursive=True) if process.status() != psutil.STATUS_ZOMBIE]


def test_a_cancelled_training_saves_leaves_nobody_and_goes_on(client: SyncPrefectClient, home: Clone, worker: psutil.Process) -> None:
    home.run("dvc", "repro", "binarize")
    long = {"train.updates": 20000, "train.save_every": 5000, "train.validate_every": 5000, "train.seed": 8}
    first, _ = cancelled_in_training(client, home, worker, long)
    second, said = cancelled_in_training(client, home, worker, long)
    assert f"going on after update {first:,}" in said
    assert second > first


def cancelled_in_training(
    client: SyncPrefectClient, home: Clone, worker: psutil.Process, overrides: dict[str, int]
) -> tuple[int, list[str]]:
    """The update after which a run of stage train had saved when it was cancelled over the API, and its log."""
    run = start(client, overrides=overrides, first_stage="train")
    wait_for(lambda: "train-progress" in artifacts(client, run), "no progress")
    began = time.monotonic()
    client.set_flow_run_state(run, Cancelling())
    state = ended(client, run).state
    assert state is not None
    assert state.is_cancelled()
    wait_for(lambda: not worker.children(recursive=True), "processes are left")
    assert time.monotonic() - began < GRACE_SECONDS
    saved = read_json(home.root / ".state/exit/train.json")
    assert saved["code"] == 75
    advice = wait_for(lambda: artifacts(client, run).get("pipeline-ended"), "nothing was said")
    assert "run it again to go on" in str(advice.data)
    wait_for(lambda: saved["message"] in " ".join(lines(client, run)), "the log does not say what was saved")
    return int(saved["message"].split("update ")[1].removesuffix(", state saved").replace(",", "")), lines(client, run)


@pytest.mark.usefixtures("worker")
def test_a_training_over_two_nodes_of_a_pool_leaves_nothing_to_do_at_home(client: SyncPrefectClient, home: Clone) -> None:
    home.run("dvc", "repro", "binarize")
    settings = {"machine.pools": {"train": "local"}, "machine.nodes": 2, "train.seed": 9, "train.updates": 20}
    settings |= {"train.save_every": 10, "train.validate_every": 20}
    run = ended(client, start(client, overrides=settings, first_stage="train"))
    assert run.state is not None
    assert run.state.is_completed(), run.state.message
    assert table(client, run.id)["train"] == "ran in local"
    nodes = [one for one in client.read_flow_runs() if f"pipeline={run.id}" in one.tags]
    assert sorted(one.name for one in nodes) == ["train-0", "train-1"]
    first = next(one for one in nodes if one.name == "train-0")
    assert any(line.endswith("on 2 x cpu") for line in lines(client, first.id))
    assert "up to date" in home.run("dvc", "repro")


@pytest.fixture
def machines() -> Iterator[list[list[str]]]:
    """Two network namespaces with a cable between them: commands to run something in each, at 10.77.0.1 and 10.77.0.2."""
    names = [f"tr{os.getpid()}{which}" for which in "ab"]

    def ip(*arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no network namespaces here: ip {' '.join(arguments)}: {done.stderr.strip()}")

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_two_machines_find_the_weights_of_one(home: Clone, machines: list[list[str]], tmp_path: Path) -> None:
    home.run("git", "checkout", "-q", "--", "params.yaml")
    home.run("dvc", "repro", "binarize")
    home.run("dvc", "push", "--run-cache")
    alone = Clone(tmp_path / "alone")
    subprocess.run(["cp", "-r", home.root, alone.root], check=True)
    alone.run("dvc", "repro", "train")

    commit = home.run("git", "rev-parse", "HEAD").strip()
    node = [sys.executable, "-m", "flows.node", "train", "--repository", str(home.root), "--commit", commit]
    with ExitStack() as stack:
        nodes = []
        for rank, machine in enumerate(machines):
            gang = {"TRANSFORMER_NODES": "2", "TRANSFORMER_NODE_RANK": str(rank), "TRANSFORMER_RENDEZVOUS": "10.77.0.1:29400"}
            gang |= {"TRANSFORMER_CLONES": str(tmp_path / f"machine-{rank}"), "TRANSFORMER_STATE": str(tmp_path / "state")}
            log = tmp_path / f"{rank}.log"
            nodes.append(stack.enter_context(running(*machine, *node, log=log, cwd=tmp_path, env={**home.environment, **gang})))
        codes = [process.wait(LONGEST_SECONDS) for process in nodes]
        assert codes == [0, 0], [(tmp_path / f"{rank}.log").read_text() for rank in range(2)]
    home.run("dvc", "repro", "--pull", "train")
    assert "up to date" in home.run("dvc", "repro", "train")
    assert "on 2 x cpu" in (tmp_path / "0.log").read_text()
    weights = [load_file(clone.root / "models/checkpoints/update-00000020.safetensors") for clone in (home, alone)]
    assert weights[0].keys() == weights[1].keys()
    for name in weights[0]:
        assert weights[0][name].dtype == torch.float64
        assert torch.allclose(weights[0][name], weights[1][name], rtol=1e-10, atol=1e-10), name
