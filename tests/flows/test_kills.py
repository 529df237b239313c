"""One training that is cancelled and whose processes are killed, again and again, at random moments.

Each time nobody is left, and it goes on after the last update that was saved; in the end its weights are, to the bit, those of a
training that nobody touched. Twenty rounds, with their table: ``KILLS=20 pytest -s tests/flows/test_kills.py``.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import psutil
import pytest
import torch
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.states import Cancelling, Crashed
from safetensors.torch import load_file

from flows.process.child import GRACE_SECONDS
from tests.clone import Clone
from tests.flows.cluster import ended, lines, start, worker_at
from tests.waiting import processes, runs_train, wait_for
from transformer_core.training.checkpoint import is_whole, state_files, update_of

pytestmark = [pytest.mark.slow, pytest.mark.prefect]

GOING_ON = "going on after update "


@dataclass
class Row:
    """The result of a round: updates, seconds until all processes of the try had ended, and the number of survivors."""

    kind: str
    struck_after: int
    saved: int
    seconds: float
    left: int
    went_on_after: int = -1


class Scene:
    """A home with a worker, the training's state on storage that all machines share, and what runs for it."""

    def __init__(self, client: SyncPrefectClient, home: Clone, folder: Path) -> None:
        self.client, self.home, self.folder = client, home, folder
        self.state = folder / "state"
        home.environment["TRANSFORMER_STATE"] = str(self.state)
        self._stack, self._workers = ExitStack(), 0
        self.new_worker()

    def new_worker(self) -> None:
        self.close()
        self._workers += 1
        self.worker = self._stack.enter_context(worker_at(self.home, self.folder / f"worker-{self._workers}.log"))

    def close(self) -> None:
        self._stack.close()

    def processes(self) -> list[psutil.Process]:
        """All that runs for this home, but for the worker."""
        return processes(self._runs_for_home)

    def ranks(self) -> list[psutil.Process]:
        return processes(lambda one: self._runs_for_home(one) and runs_train(one) and "TORCHELASTIC_RUN_ID" in one.environ())

    def _runs_for_home(self, one: psutil.Process) -> bool:
        return one.environ().get("TRANSFORMER_STATE") == str(self.state) and one.pid != self.worker.pid

    def two_ranks(self, run: UUID) -> bool:
        """Whether both ranks are there; fails with the run's output if it has ended instead."""
        state = self.client.read_flow_run(run).state
        assert state is None or not state.is_final(), "\n".join([repr(state), *lines(self.client, run)])
        return len(self.ranks()) == 2

    def flow_of(self, run: UUID) -> list[psutil.Process]:
        """The process of a flow run, that the worker started."""
        return [one for one in self.worker.children() if one.environ().get("PREFECT__FLOW_RUN_ID") == str(run)]

    def update(self) -> int:
        """The last update in the table of updates, which has a row for every 20."""
        rows = [line for table in self.state.glob("*/updates.csv") for line in table.read_text(encoding="utf-8").splitlines()[1:]]
        return int(rows[-1].split(",")[0]) if rows else 0

    def saved(self) -> int:
        """The update of the last whole state."""
        files = [file for directory in self.state.glob("*") for file in state_files(directory) if is_whole(file)]
        return max(map(update_of, files), default=0)

    def starts(self, run: UUID) -> list[int]:
        """After which update each try of a run's training began."""
        tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"pipeline={run}"]))
        nodes = sorted(self.client.read_flow_runs(flow_run_filter=tagged), key=lambda one: str(one.created))
        output = [line for one in [run, *(node.id for node in nodes)] for line in lines(self.client, one)]
        return [int(line.removeprefix(GOING_ON).replace(",", "")) for line in output if line.startswith(GOING_ON)]


def cancel(scene: Scene, run: UUID) -> None:
    """Over the API."""
    scene.client.set_flow_run_state(run, Cancelling())


def end_the_worker(scene: Scene, run: UUID) -> None:
    """With SIGTERM. It kills its runs at once, and nobody tells Prefect, where the automation of docs/cluster.md would say `Crashed`."""
    scene.worker.terminate()
    scene.worker.wait(60)
    scene.client.set_flow_run_state(run, Crashed(), force=True)


def kill_a_rank(scene: Scene, _: UUID) -> None:
    random.choice(scene.ranks()).kill()


def kill_torchrun(scene: Scene, _: UUID) -> None:
    random.choice([one for one in scene.processes() if "flows.cluster.torchrun" in one.cmdline()]).kill()


def kill_dvc(scene: Scene, _: UUID) -> None:
    (dvc,) = [one for one in scene.processes() if {"dvc", "repro"} <= set(one.cmdline())]
    dvc.kill()


def kill_the_stage(scene: Scene, _: UUID) -> None:
    """One of the processes between dvc, or a node, and torchrun."""
    above = [one for rank in scene.ranks() for one in rank.parents() if runs_train(one)]
    random.choice([one for one in above if "flows.cluster.torchrun" not in one.cmdline()]).kill()


def kill_a_node(scene: Scene, run: UUID) -> None:
    """All that runs for one of two nodes at once, as if its machine were gone."""
    rank = random.choice(scene.ranks())
    flow = next(one for one in rank.parents() if one.ppid() == scene.worker.pid)
    assert flow not in scene.flow_of(run)
    for process in [flow, *flow.children(recursive=True)]:
        process.kill()


Strike = Callable[[Scene, UUID], None]
RUN_ENDS = (cancel, end_the_worker)
HERE: dict[str, object] = {"machine.devices": 2, "machine.pools": {}, "machine.nodes": 1}
TWO_NODES: dict[str, object] = {"machine.devices": 1, "machine.pools": {"train": "local"}, "machine.nodes": 2}
# What happens to a run: as many kills as it has retries, or fewer, and then what ends it.
FEW: list[tuple[dict[str, object], list[Strike]]] = [(TWO_NODES, [kill_a_node, end_the_worker])]
TWENTY: list[tuple[dict[str, object], list[Strike]]] = [
    (HERE, [kill_dvc, kill_a_rank, kill_the_stage, cancel]),
    (TWO_NODES, [kill_a_node, kill_a_rank, kill_dvc, cancel]),
    (HERE, [kill_a_rank, kill_torchrun, kill_dvc, end_the_worker]),
    (TWO_NODES, [kill_a_node, kill_the_stage, kill_a_node, end_the_worker]),
    (TWO_NODES, [kill_torchrun, kill_a_node, cancel]),
    (HERE, [end_the_worker]),
]
RUNS = TWENTY if os.environ.get("KILLS") == "20" else FEW
ROUNDS = sum(len(strikes) for _, strikes in RUNS)
# Long after the last strike: the line that says where a try began reaches Prefect seconds later.
UPDATES = 80 + 50 * ROUNDS
TRAINING = {"train.updates": UPDATES, "train.save_every": 10, "train.validate_every": 100000, "train.seed": 11}
TRAINING |= {"train.tokens_per_update": 2560}  # slow enough to be struck
ONLY_TRAIN = {"first_stage": "train", "last_stage": "train"}


@pytest.fixture
def scene(client: SyncPrefectClient, home: Clone, deployed: str, tmp_path: Path) -> Iterator[Scene]:
    assert "successfully" in deployed
    made = Scene(client, home, tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(300 * (ROUNDS + 2))
def test_a_training_that_is_killed_again_and_again_ends_as_one_that_nobody_touched(scene: Scene, tmp_path: Path) -> None:
    scene.home.run("dvc", "repro", "binarize")
    untouched = scene.home.copy(tmp_path / "untouched")
    for key, value in {**TRAINING, **HERE}.items():
        section, _, name = key.partition(".")
        untouched.set({section: {name: value}})
    rows: list[Row] = []
    with untouched.beside(sys.executable, "-m", "flows.stages", "train"):
        for where, strikes in RUNS:
            run = start(scene.client, overrides={**TRAINING, **where}, **ONLY_TRAIN)
            fresh = not rows
            for tries, strike in enumerate(strikes, 1):
                if rows:
                    rows[-1].went_on_after = went_on_after(scene, run, tries - fresh)
                rows.append(play(scene, run, strike))
                print(rows[-1], flush=True)
        run = start(scene.client, overrides={**TRAINING, **HERE}, **ONLY_TRAIN)
        rows[-1].went_on_after = went_on_after(scene, run, 1)
    print("", "| | struck after update | saved | went on after | all gone, s | left |", "|---|---|---|---|---|---|", sep="\n")
    for row in rows:
        print(f"| {row.kind} | {row.struck_after} | {row.saved} | {row.went_on_after} | {row.seconds:.1f} | {row.left} |")
    assert not any(row.left for row in rows)
    assert [row.went_on_after for row in rows] == [row.saved for row in rows]

    last = ended(scene.client, run)
    assert last.state is not None
    assert last.state.is_completed(), last.state.message
    file = f"models/checkpoints/update-{UPDATES:08d}.safetensors"
    weights = [load_file(clone.root / file) for clone in (scene.home, untouched)]
    for name in weights[0]:
        assert torch.equal(weights[0][name], weights[1][name]), name  # All of it on two ranks of a thread each.


def went_on_after(scene: Scene, run: UUID, tries: int) -> int:
    """Wait until a run's training has gone on so many times; the update it did so after."""
    wait_for(lambda: len(scene.starts(run)) >= tries, f"the training did not go on {tries} times", pause=0.5)
    return scene.starts(run)[-1]


def play(scene: Scene, run: UUID, strike: Strike) -> Row:
    """Strike at a random moment and wait for everybody of that try to go."""
    wait_for(lambda: scene.two_ranks(run), "two ranks did not start", pause=0.5)
    moment = max(20, scene.update() + random.randint(1, 20))  # The first is not before something was saved.
    wait_for(lambda: scene.update() >= moment, f"update {moment} did not come")
    spared = [] if strike in RUN_ENDS else scene.flow_of(run)
    there = [process for process in scene.processes() if process not in spared]
    struck_after, began = scene.update(), time.monotonic()
    strike(scene, run)
    _, left = psutil.wait_procs(there, timeout=GRACE_SECONDS)
    seconds = time.monotonic() - began
    if strike is end_the_worker:
        scene.new_worker()
    if strike in RUN_ENDS:
        ended(scene.client, run)
    return Row(strike.__name__.replace("_", " "), struck_after, scene.saved(), seconds, len(left))
