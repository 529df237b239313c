"""Ranks of a training under torchrun."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.clone import ROOT

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
