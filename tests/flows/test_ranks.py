"""Ranks of a training under torchrun, on one node and on a group of nodes, which is complete or ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.places.ranks import NodeGroup
from flows.process.exits import deciding
from tests.clone import ROOT
from tests.flows.test_train_stage import prepare
from tests.refusals import refused
from tests.waiting import free_port, wait_for

# The first rank ends as asked, and torchrun stops the other one with SIGTERM.
ENDING = """
import os, signal, sys, time

if os.environ["RANK"] == "1":
    time.sleep(600)
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "SIGKILL" else sys.exit(int(sys.argv[1]))
"""
RANK = """
import os, signal, sys
import torch
from flows.places import ranks

def body():
    rank, folder = int(sys.argv[1]), sys.argv[2]
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.distributed.all_reduce(torch.zeros(1))
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.all_reduce(torch.zeros(1))

ranks._TORCHRUN_SECONDS = 0
sys.exit(ranks.run_rank(body))
"""


def test_a_rank_whose_other_was_killed_ends_with_one_line(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", RANK, str(rank), str(tmp_path)] for rank in range(2)]
    killed, left = (subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for command in commands)
    assert left.communicate(timeout=60)[1] == "the connection to another rank was lost\n"
    assert left.returncode == 69
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL


LATE = """
import atexit, os, signal, sys
from flows.places.ranks import run_rank
from transformer_core.errors import Interrupted

def body():
    if sys.argv[1] == "stopped":
        raise Interrupted("stopped")

code = run_rank(body)
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
sys.exit(code)
"""


@pytest.mark.parametrize("end", ["stopped", "done"])
def test_a_stop_that_comes_late_does_not_kill_a_rank_that_has_saved(tmp_path: Path, end: str) -> None:
    """A scheduler stops all processes, and each of them those below it; torchrun on other nodes waits for a rank that was killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", LATE, end], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("ending", "code"), [("78", 78), ("69", 69), ("1", 1), ("SIGKILL", 137)])
def test_torchrun_ends_with_the_code_of_the_rank_that_is_the_cause(tmp_path: Path, ending: str, code: int) -> None:
    (tmp_path / "rank.py").write_text(ENDING, encoding="utf-8")
    command = [sys.executable, "-m", "flows.places.ranks", "--standalone", "--nproc-per-node=2", str(tmp_path / "rank.py"), ending]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    said = {1: "rank 0 failed first: exit code 1\n", 137: "rank 0 failed first: ended by SIGKILL\n"}
    assert done.stderr == said.get(code, "")


def test_what_made_processes_fail_together_decides() -> None:
    assert [deciding(codes) for codes in ([69, 1], [1, 137, 69], [143, 1, 69], [137, 78], [69, 75], [0, 134])] == [1, 137, 1, 78, 75, 134]


# The environment of a node beside TRANSFORMER_NODES, and its group or the fault.
GROUPS: list[tuple[dict[str, str], object]] = [
    ({"NODES": "1"}, None),
    ({"NODE_RANK": "2", "RENDEZVOUS": "10.77.0.1:29400", "JOIN_SECONDS": "60"}, NodeGroup(3, 2, "10.77.0.1", 29400, 60)),
    ({"NODE_RANK": "2", "RENDEZVOUS": "node-a:29400"}, NodeGroup(3, 2, "node-a", 29400, 900)),
    ({"RENDEZVOUS": "a:1"}, "TRANSFORMER_NODES=3: TRANSFORMER_NODE_RANK is not set"),
    ({"NODE_RANK": "0"}, "TRANSFORMER_NODES=3: TRANSFORMER_RENDEZVOUS is not set"),
    ({"NODE_RANK": "3", "RENDEZVOUS": "a:1"}, "TRANSFORMER_NODE_RANK=3: must be from 0 to 2"),
    ({"NODE_RANK": "0", "RENDEZVOUS": "10.0.0.1"}, r"TRANSFORMER_NODES=3: .*'10\.0\.0\.1'.* is host:port"),
    ({"NODE_RANK": "0", "RENDEZVOUS": "a:1", "JOIN_SECONDS": "15 minutes"}, "TRANSFORMER_NODES=3: .*'15 minutes'"),
]


@pytest.mark.parametrize(("settings", "found"), GROUPS)
def test_a_group_is_read_from_the_environment_of_its_node(settings: dict[str, str], found: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NODES": "3", **settings}.items():
        monkeypatch.setenv(f"TRANSFORMER_{name}", value)
    if isinstance(found, str):
        with refused(78, f"^{found}"):
            NodeGroup.from_environment()
    else:
        assert NodeGroup.from_environment() == found


def test_gloo_and_nccl_use_the_interface_towards_node_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "=ib0")  # The user's own goes first.
    chosen = NodeGroup(2, 0, "127.0.0.1", 29400, 60).interfaces()  # Two nodes on one machine, on purpose.
    assert "127.0.0.1" in {entry.address for entry in psutil.net_if_addrs()[chosen["GLOO_SOCKET_IFNAME"]]}
    assert chosen["NCCL_SOCKET_IFNAME"] == "=ib0"
    with refused(69, r"^nowhere\.invalid:29400: "):
        NodeGroup(2, 1, "nowhere.invalid", 29400, 60).interfaces()


class Nodes:
    """Nodes of a group as processes here, in one folder with the inputs of stage train, as on shared storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rendezvous = f"127.0.0.1:{free_port()}"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, rank: int, join_seconds: int = 120) -> "subprocess.Popen[str]":
        settings = {"NODES": 2, "NODE_RANK": rank, "RENDEZVOUS": self.rendezvous, "JOIN_SECONDS": join_seconds}
        group = {f"TRANSFORMER_{name}": str(value) for name, value in settings.items()}
        command = [sys.executable, "-m", "flows.stages", "train", "--here"]
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, cwd=self.folder, env={**os.environ, **group}, text=True, **streams)
        self.started.append(process)
        return process


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.chdir(tmp_path)
    prepare("bpe", updates=20000, save_every=10000, validate_every=10000)
    made = Nodes(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            for below in psutil.Process(process.pid).children(recursive=True):
                below.kill()
            process.kill()
        process.communicate()


def wait_until_training(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("update "):
            return
    raise AssertionError("it ended before an update")


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Exit code and last line of the output."""
    output = process.communicate(timeout=300)[1]
    return process.returncode, output.rstrip("\n").rpartition("\n")[2]


@pytest.mark.slow  # about 10 s
def test_a_node_gives_up_waiting_for_the_others(nodes: Nodes) -> None:
    code, output = ended(nodes.start(0, join_seconds=2))
    assert code == 69
    assert output.startswith("a rank was lost on one of 2 nodes, or a node did not reach 127.0.0.1:")


@pytest.mark.slow  # about 20 s: two processes with a rank each
def test_a_group_stops_and_saves_together(nodes: Nodes, tmp_path: Path) -> None:
    both = [nodes.start(rank) for rank in (0, 1)]
    wait_until_training(both[0])
    wait_for(lambda: list(tmp_path.glob(".state/record/*/machine-1.csv")), process=both[0])
    both[1].terminate()  # either of them
    codes, output = zip(*map(ended, both), strict=True)
    assert codes == (75, 75), output
    assert output[0].startswith("training stopped after update ")
    assert output[0] == output[1]
