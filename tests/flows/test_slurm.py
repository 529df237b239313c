"""Stages on a real Slurm of two nodes: each way to lose a job, and the weights of an undisturbed training."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.clone import Clone, tiny_clone
from tests.slurm import Cluster, cluster
from tests.waiting import wait_for
from transformer_core.files import read_json, sha256_of

pytestmark = pytest.mark.slow  # about 6 minutes all together

UPDATES = 120
LAST = f"update-{UPDATES:08}.safetensors"
SLOW_DISK = "import os, time\nfsync = os.fsync\nos.fsync = lambda file: (time.sleep(0.3), fsync(file))[1]\n"
PLACE = {"on": "slurm", "time": "00:20:00", "nodes": 2}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm")) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, slurm: Cluster) -> Clone:
    """A clone whose stage train runs on two nodes, with the inputs of the training."""
    made = tiny_clone(tmp_path_factory.mktemp("home"))
    made.environment |= slurm.environment  # Clones of it have that of these tests.
    train = {"updates": UPDATES, "save_every": 10, "validate_every": 60, "bleu_sentences": 2, "precision": "float64"}
    made.set({"train": train, "machine": {"places": {"train": PLACE}}})
    made.commit("a place")
    made.run("dvc", "repro", "binarize")
    return made


@pytest.fixture(scope="module")
def undisturbed(home: Clone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The sums of the checkpoints of a training that nothing disturbs, and whose lines the terminal shows."""
    clone = home.copy(tmp_path_factory.mktemp("undisturbed") / "clone")
    said = clone.run("dvc", "repro", "train")
    assert "training 33,792 parameters on 2 x cpu" in said
    assert f"update {UPDATES} of {UPDATES}: " in said
    return checkpoints(clone)


def checkpoints(clone: Clone) -> dict[str, str]:
    return {file.name: sha256_of(file) for file in sorted((clone.root / "models/checkpoints").glob("update-*.safetensors"))}


class Running:
    """`dvc repro train` in a clone of its own, whose training has saved a state."""

    def __init__(self, clone: Clone, slurm: Cluster) -> None:
        self.clone, self.slurm = clone, slurm
        self.log = clone.root.with_suffix(".log")
        self.start()

    def begin(self) -> None:
        wait_for(lambda: self.slurm.jobs("RUNNING"), "no job runs", pause=0.2, process=self.process)
        wait_for(lambda: list((self.clone.root / ".state").glob("*/state-*.pt")), "no state was saved", 0.1, self.process)
        (self.job,) = self.slurm.jobs("RUNNING")

    def start(self) -> None:
        repro = ["dvc", "repro", "train"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(repro, cwd=self.clone.root, env=self.clone.environment, stdout=output, stderr=output)

    def ended(self) -> int:
        return self.process.wait(300)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def goes_on(self) -> dict[str, str]:
        """Start the queued job, on a fast disk, and return the sums of the checkpoints."""
        (self.clone.root / ".state/sitecustomize.py").write_text("")
        self.slurm.start_now(self.job)
        assert self.ended() == 0, self.said()
        assert "going on after update " in self.said()
        return checkpoints(self.clone)


@pytest.fixture
def running(home: Clone, slurm: Cluster, undisturbed: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    assert undisturbed
    clone = home.copy(tmp_path / "a clone")
    if changes := getattr(request, "param", {}):
        (clone.root / ".state/sitecustomize.py").write_text(SLOW_DISK)
        (clone.root / ".state/prelude").write_text("export PYTHONPATH=$PWD/.state:$PYTHONPATH")
        clone.set({"train": changes, "machine": {"places": {"train": {**PLACE, "prelude": ".state/prelude"}}}})
    made = Running(clone, slurm)
    try:
        made.begin()
        yield made
    finally:
        for process in (*psutil.Process(made.process.pid).children(recursive=True),) if made.process.poll() is None else ():
            process.kill()
        made.process.kill()
        made.process.wait()
        for job in slurm.jobs("RUNNING", "PENDING", "COMPLETING"):
            slurm.run("scancel", job)
        wait_for(lambda: not slurm.jobs("RUNNING", "PENDING", "COMPLETING"), "a job is left", pause=0.5)


# Saves at each update to a slow disk: Slurm has time to notice something.
often = pytest.mark.parametrize("running", [{"save_every": 1, "validate_every": 1}], indirect=True, ids=[""])


def test_a_job_that_is_cancelled_saves_and_the_next_goes_on(running: Running, undisturbed: dict[str, str]) -> None:
    running.slurm.run("scancel", running.job)
    assert running.ended() == 255
    assert "Run it again to resume. Run" not in running.said()
    report = read_json(running.clone.root / ".state/exit/train.json")
    assert report["code"] == 75
    assert report["message"].startswith("training stopped after update ")
    assert not running.slurm.jobs("PENDING", "RUNNING")
    assert "going on after update " in running.clone.run("dvc", "repro", "train")
    assert checkpoints(running.clone) == undisturbed


def test_a_stop_of_dvc_stops_the_job(running: Running, undisturbed: dict[str, str]) -> None:
    psutil.Process(running.process.pid).send_signal(signal.SIGINT)
    for below in psutil.Process(running.process.pid).children(recursive=True):
        below.send_signal(signal.SIGINT)  # As a terminal does.
    assert running.ended()
    assert read_json(running.clone.root / ".state/exit/train.json")["message"].startswith("training stopped after update ")
    assert not running.slurm.jobs("PENDING", "RUNNING")
    running.clone.run("dvc", "repro", "train")
    assert checkpoints(running.clone) == undisturbed


def test_a_job_that_is_queued_again_goes_on(running: Running, undisturbed: dict[str, str]) -> None:
    running.slurm.run("scontrol", "requeue", running.job)
    assert running.goes_on() == undisturbed


@often
def test_a_job_at_its_time_limit_is_queued_again_and_goes_on(running: Running, undisturbed: dict[str, str]) -> None:
    # Less is left than the notice of machine.grace_seconds, which Slurm finds out at its next look, within half a minute.
    running.slurm.run("scontrol", "update", f"jobid={running.job}", "TimeLimit=2")
    wait_for(lambda: running.job in running.slurm.jobs("PENDING"), "the time limit ended nothing", pause=0.5)
    running.slurm.run("scontrol", "update", f"jobid={running.job}", "TimeLimit=20")
    assert running.goes_on()[LAST] == undisturbed[LAST]
    assert "queued again after 75" in running.said()


@often
def test_a_job_whose_node_was_lost_goes_on(running: Running, undisturbed: dict[str, str]) -> None:
    running.slurm.lose("n2")
    wait_for(lambda: running.job in running.slurm.jobs("PENDING"), "the lost node was not noticed", pause=0.5)
    running.slurm.start_node("n2")
    running.slurm.wait_until_idle()
    assert running.goes_on()[LAST] == undisturbed[LAST]


def test_a_dvc_that_was_killed_finds_its_job_again(running: Running, undisturbed: dict[str, str]) -> None:
    for process in (running.process, *psutil.Process(running.process.pid).children(recursive=True)):  # DVC first: it would write.
        process.kill()
    running.process.wait()
    running.start()
    assert running.ended() == 0, running.said()
    assert f"train: job {running.job} of slurm goes on" in running.said()
    assert checkpoints(running.clone) == undisturbed


def test_a_partition_that_is_not_there_is_one_line(home: Clone, tmp_path: Path) -> None:
    clone = home.copy(tmp_path / "clone")
    clone.set({"machine": {"places": {"train": {**PLACE, "options": {"partition": "gpu"}}}}})
    said = clone.run(sys.executable, "-m", "flows.stages", "train", code=78)
    assert said == "sbatch refuses: invalid partition specified: gpu. Correct machine.places.\n"


def test_a_bug_of_a_node_is_told_as_a_bug_and_not_queued_again(home: Clone, slurm: Cluster, tmp_path: Path) -> None:
    clone = home.copy(tmp_path / "clone")
    stage = clone.root / "flows/stages/train.py"
    stage.write_text(stage.read_text().replace("def run(params: Params) -> str:\n", "def run(params: Params) -> str:\n    1 / 0\n"))
    assert "ZeroDivisionError" in clone.run(sys.executable, "-m", "flows.stages", "train", code=1)
    assert not slurm.jobs("PENDING", "RUNNING")
