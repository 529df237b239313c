"""Nodes that train together: the environment of each, and that a group is complete or ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.places.group import NodeGroup, address_towards
from tests.flows.test_train_stage import prepare
from tests.refusals import refused
from tests.waiting import free_port, wait_for
from transformer_core.errors import UserError


def tell(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"TRANSFORMER_{name}", value)


def environment(nodes: int, rank: int, rendezvous: str) -> dict[str, str]:
    return {"NODES": str(nodes), "NODE_RANK": str(rank), "RENDEZVOUS": rendezvous}


def test_a_machine_without_a_group_in_its_environment_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NodeGroup.from_environment() is None
    tell(monkeypatch, NODES="1")
    assert NodeGroup.from_environment() is None


def test_a_node_of_a_pool_takes_its_address_and_the_time_to_wait_from_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    tell(monkeypatch, ADDRESS="10.77.0.3", JOIN_SECONDS="60")
    assert NodeGroup(3, 2, "10.77.0.1:29400") == NodeGroup(3, 2, "10.77.0.1:29400", "10.77.0.3", 60)
    tell(monkeypatch, JOIN_SECONDS="15 minutes")
    with pytest.raises(UserError, match="TRANSFORMER_JOIN_SECONDS=15 minutes: must be a number of seconds"):
        NodeGroup(3, 2, "10.77.0.1:29400")


def test_a_group_is_read_from_the_environment_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    tell(monkeypatch, **environment(3, 2, "10.77.0.1:29400"), ADDRESS="10.77.0.3", JOIN_SECONDS="60")
    group = NodeGroup.from_environment()
    assert group == NodeGroup(3, 2, "10.77.0.1:29400", "10.77.0.3", 60)
    assert {"--nnodes=3", "--node-rank=2", "--master-addr=10.77.0.1", "--local-addr=10.77.0.3"} <= set(group.torchrun())


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "TRANSFORMER_NODES=2, but TRANSFORMER_NODE_RANK is not set"),
        ({"NODE_RANK": "0"}, "TRANSFORMER_NODES=2, but TRANSFORMER_RENDEZVOUS is not set"),
        ({"NODE_RANK": "2", "RENDEZVOUS": "a:1"}, "TRANSFORMER_NODE_RANK=2: must be from 0 to 1"),
        ({"NODE_RANK": "0", "RENDEZVOUS": "10.0.0.1"}, "TRANSFORMER_NODES=2: '10.0.0.1' is not host:port"),
    ],
)
def test_an_incomplete_environment_is_one_line(settings: dict[str, str], fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(monkeypatch, NODES="2", **settings)
    with refused(78) as raised:
        NodeGroup.from_environment()
    assert str(raised.value).startswith(fault)


def test_a_node_tells_the_others_the_address_that_leads_to_the_first_or_the_one_it_was_given() -> None:
    group = NodeGroup(2, 0, "127.0.0.1:29400")  # Two nodes on one machine, on purpose.
    assert group.own_address() == "127.0.0.1"
    chosen = group.interfaces()
    assert chosen == {"GLOO_SOCKET_IFNAME": chosen["GLOO_SOCKET_IFNAME"], "NCCL_SOCKET_IFNAME": f"={chosen['GLOO_SOCKET_IFNAME']}"}
    assert NodeGroup(2, 0, "node-a:29400", "10.0.0.7").own_address() == "10.0.0.7"


class Nodes:
    """Nodes of a group as processes here, in one folder with the inputs of stage train, as on shared storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rendezvous = f"127.0.0.1:{free_port()}"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, rank: int, join_seconds: int = 120) -> "subprocess.Popen[str]":
        group = {**environment(2, rank, self.rendezvous), "ADDRESS": "127.0.0.1", "JOIN_SECONDS": str(join_seconds)}
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.stages", "train", "--here"],
            cwd=self.folder,
            env={**os.environ, **{f"TRANSFORMER_{name}": value for name, value in group.items()}},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
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


def test_a_node_that_cannot_find_the_first_one_says_so() -> None:
    with refused(69, r"^nowhere\.invalid:29400: "):
        address_towards("nowhere.invalid", 29400)
