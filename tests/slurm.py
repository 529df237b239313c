"""A real Slurm of two nodes on the loopback, as the present user: munged, slurmctld and two slurmd, each stopped by its process id."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from getpass import getuser
from pathlib import Path

import psutil
import pytest

from tests.waiting import free_port, processes, wait_for

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
_NODES = ("n1", "n2")
# Short times: a lost node is noticed after ten seconds, and a job is looked at twice a second.
_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdParameters=config_overrides
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
ReturnToService=2
SlurmdTimeout=10
KillWait=30
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """The running cluster; `environment` is that of its users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        """The output of a command of Slurm."""
        done = subprocess.run(command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def jobs(self, *states: str) -> list[str]:
        """The numbers of the jobs in these states."""
        return self.run("squeue", "--noheader", f"--states={','.join(states)}", "--format=%i").split()

    def start_now(self, job: str) -> None:
        """Start a job that was queued again in ten seconds instead of two minutes; at once, Slurm would take it for its ended run."""
        wait_for(lambda: job in self.jobs("PENDING"), f"job {job} was not queued again", pause=0.2)
        self.run("scontrol", "update", f"jobid={job}", "StartTime=now+10")

    def wait_until_idle(self) -> None:
        """Wait until both nodes are there and have nothing to do."""
        wait_for(lambda: self.run("sinfo", "--noheader", "--format=%T %D") == "idle 2", "the nodes of Slurm are not idle", pause=0.5)

    def lose(self, name: str) -> None:
        """Kill a node: its daemon and all that runs on it."""
        stopped = [psutil.Process(int((self.folder / f"{name}.pid").read_text()))]
        for process in processes(
            lambda one: one.environ().get("SLURMD_NODENAME") == name and one.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]
        ):
            stopped += [process, *(one for one in process.parents() if one.name().startswith("slurmstepd"))]
        for process in stopped:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        subprocess.run(["slurmd", "-N", name, "-f", self.environment["SLURM_CONF"]], check=True)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster with its files in a folder. Skips the test where Slurm is not installed or does not start."""
    if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"no Slurm here: {missing[0]} is missing (Debian: slurm-wlm)")
    for name in ("state", *(f"spool-{node}" for node in _NODES)):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    ports = [free_port() for _ in range(3)]
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, user=getuser(), host=socket.gethostname(), ports=ports))
    made = Cluster(folder)
    munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    with ExitStack() as stack:
        for name in ("munge", "slurmctld", *_NODES):
            stack.callback(_stop, folder / f"{name}.pid")
        subprocess.run(["munged", "--force", f"--key-file={key}", *munge], check=True, capture_output=True)
        subprocess.run(["slurmctld", "-c", "-f", folder / "slurm.conf"], check=True)
        for name in _NODES:
            made.start_node(name)
        made.wait_until_idle()
        yield made
        for job in made.jobs("RUNNING", "PENDING"):
            subprocess.run(["scancel", "--signal=KILL", "--full", job], env={**os.environ, **made.environment}, check=False)


def _stop(pid_file: Path) -> None:
    with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
        process = psutil.Process(int(pid_file.read_text()))
        process.send_signal(signal.SIGTERM)
        process.wait(20)
