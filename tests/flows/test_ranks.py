"""Ranks of a training under torchrun."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.process.exits import deciding
from tests.clone import ROOT

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
from flows.cluster import ranks

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


@pytest.mark.parametrize(("ending", "code"), [("78", 78), ("69", 69), ("1", 1), ("SIGKILL", 137)])
def test_torchrun_ends_with_the_code_of_the_rank_that_is_the_cause(tmp_path: Path, ending: str, code: int) -> None:
    (tmp_path / "rank.py").write_text(ENDING, encoding="utf-8")
    command = [sys.executable, "-m", "flows.cluster.torchrun", "--standalone", "--nproc-per-node=2", str(tmp_path / "rank.py"), ending]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    said = {1: "rank 0 failed first: exit code 1\n", 137: "rank 0 failed first: ended by SIGKILL\n"}
    assert done.stderr == said.get(code, "")


def test_what_made_processes_fail_together_decides() -> None:
    assert [deciding(codes) for codes in ([69, 1], [1, 137, 69], [143, 1, 69], [137, 78], [69, 75], [0, 134])] == [1, 137, 1, 78, 75, 134]
