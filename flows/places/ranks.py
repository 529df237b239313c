"""The ranks of a training: torchrun on this node, alone or as one of a group, and what its ranks report of their end.

    python -m flows.places.ranks --standalone --nproc-per-node=2 -m flows.stages train

is torchrun, which itself would end ranks that are saving and exit with 1. The job of a scheduler describes a group to its nodes by:

TRANSFORMER_NODES=2  TRANSFORMER_NODE_RANK=0..1  TRANSFORMER_RENDEZVOUS=10.0.0.1:29400 (an address of node 0)
TRANSFORMER_JOIN_SECONDS=900   time for which a node waits for the others
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

import psutil

from flows.process.child import run_child
from flows.process.exits import deciding, in_words, shell_code
from flows.process.runner import STARTERS, StageError, echo, exit_file, exit_with_starters, memory_remedy, report_exit
from flows.process.signals import handle_stop_signals, hold_stop_signals, ignore_stop_signals, release_stop_signals, stop_on_signals
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, machine_errors
from transformer_core.files import read_json

# A queue may allocate nodes one by one. A node that has waited this long for the others ends, and its scheduler tries again.
JOIN_SECONDS = "900"
# Torchrun kills what has not ended this long after the first failure.
_KILL_SECONDS = 30
# Within them torchrun sees that a rank of its machine has ended, and stops the others.
_TORCHRUN_SECONDS = 10


class NodeGroup(NamedTuple):
    """A group, as seen from node `rank` of `nodes`. Node 0 has the rendezvous, and the process that writes the training's outputs."""

    nodes: int
    rank: int
    host: str
    port: int
    join_seconds: int

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the group of this node, or None if it trains alone. Raises `UserError` (78): the environment is incomplete or wrong."""
        nodes = os.environ.get("TRANSFORMER_NODES", "1")
        if nodes == "1":
            return None
        try:
            host, _, port = os.environ["TRANSFORMER_RENDEZVOUS"].rpartition(":")
            join_seconds = int(os.environ.get("TRANSFORMER_JOIN_SECONDS", JOIN_SECONDS))
            group = cls(int(nodes), int(os.environ["TRANSFORMER_NODE_RANK"]), host, int(port), join_seconds)
        except (KeyError, ValueError) as error:
            fault = f"{error.args[0]} is not set" if isinstance(error, KeyError) else str(error)
            remedy = "TRANSFORMER_RENDEZVOUS is host:port; TRANSFORMER_NODE_RANK and TRANSFORMER_JOIN_SECONDS are numbers."
            raise configuration_error(f"TRANSFORMER_NODES={nodes}: {fault}", remedy) from None
        if not 0 <= group.rank < group.nodes:
            raise configuration_error(f"TRANSFORMER_NODE_RANK={group.rank}: must be from 0 to {group.nodes - 1}")
        return group

    def torchrun(self) -> list[str]:
        """Return options of torchrun. The rendezvous is static: torch's dynamic one numbers nodes by address, so any could get rank 0."""
        return [
            f"--nnodes={self.nodes}",
            f"--node-rank={self.rank}",
            "--rdzv-backend=static",
            f"--rdzv-conf=timeout={self.join_seconds}",
            f"--master-addr={self.host}",
            f"--master-port={self.port}",
        ]

    def interfaces(self) -> dict[str, str]:
        """Return variables with the network interface towards node 0, for gloo and NCCL, which otherwise may choose another one.

        Raises `UserError` (69): node 0 is unknown or cannot be reached.
        """
        own = address_towards(self.host, self.port)
        if own.startswith("127.") and not self.host.startswith(("127.", "localhost")):
            # On node 0, whose own name Debian resolves to 127.0.1.1. This address for documentation (RFC 5737) is on the default route.
            own = address_towards("192.0.2.1", 9)
        name = next((name for name, addresses in psutil.net_if_addrs().items() if own in {entry.address for entry in addresses}), None)
        if name is None:
            return {}
        chosen = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}  # To NCCL eth1 alone would also name eth10.
        return {key: os.environ.get(key, value) for key, value in chosen.items()}


def address_towards(host: str, port: int) -> str:
    """Return the address from which this machine would reach a host; nothing is sent. Raises `UserError` (69): there is no way to it."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(f"{host}:{port}: {error.strerror}", "Check the network.", ExitCode.UNAVAILABLE) from None


def launch(devices: int, group: NodeGroup | None) -> None:
    """Run stage train under torchrun, with a rank for each device. A stop signal makes all ranks, on all nodes of a group, save and end.

    Raises `UserError`: the error of a rank; 69 if another node was lost or never came. `StageError`: a rank ended without a report, as when
    memory runs out. `Interrupted`: the ranks were stopped and have saved.
    """
    rank_exit = _rank_exit()
    rank_exit.unlink(missing_ok=True)
    nodes = ["--standalone"] if group is None else group.torchrun()
    ranks = [sys.executable, "-m", "flows.places.ranks", *nodes, f"--nproc-per-node={devices}", "-m", "flows.stages", "train"]
    # The first only silences torchrun's warning about this default; each rank sets its number of threads itself. The second silences
    # c10d's warnings about machines whose addresses have no name.
    environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"} | (group.interfaces() if group else {})
    try:
        code = run_child(ranks, None, environment=environment)
    except Interrupted:
        if not rank_exit.exists():
            raise
        code = ExitCode.INTERRUPTED  # The ranks have saved; their report names the update.
    if rank_exit.exists():
        report = read_json(rank_exit)
        if report["code"] != ExitCode.INTERRUPTED:
            raise UserError(report["message"], report["remedy"], ExitCode(report["code"]))
        if code in (ExitCode.DONE, ExitCode.INTERRUPTED):  # Otherwise a rank failed, and torchrun stopped the one that reports this.
            raise Interrupted(report["message"])
    if code == ExitCode.UNAVAILABLE:
        where = "" if group is None else f" on one of {group.nodes} nodes, or a node did not reach {group.host}:{group.port}"
        raise UserError(f"a rank was lost{where}", "The output of the ranks is above. Run it again to resume.", ExitCode.UNAVAILABLE)
    if code:
        raise StageError(code, f"the ranks: {in_words(code)}; their output is above")


def run_rank(body: Callable[[], None]) -> int:
    """Run one rank and report its exit. A stopped rank returns 0 after it has saved, because torchrun ends all ranks if one fails."""
    stop_on_signals()
    exit_with_starters()
    rank_exit = _rank_exit()
    try:
        with machine_errors("train", memory_remedy("train")):
            body()
    except Interrupted as error:
        if not rank_exit.exists():  # torchrun stops the other ranks when one has failed, whose report has the reason.
            report_exit(rank_exit, ExitCode.INTERRUPTED, str(error))
    except UserError as error:
        report_exit(rank_exit, error.exit_code, error.message, error.remedy)
        if not rank_exit.exists():  # The disk is full.
            echo(str(error), sys.stderr)
        return error.exit_code
    except RuntimeError as error:
        import torch

        # Of a collective operation whose other side has ended; gloo's error has no type of its own.
        if not (isinstance(error, torch.distributed.DistError) or "/gloo/" in str(error)):
            raise
        echo("the connection to another rank was lost", sys.stderr)
        # If that rank was of this machine, torchrun stops this one, and says which one failed first.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_TORCHRUN_SECONDS)
        os._exit(ExitCode.UNAVAILABLE)  # Without destructors: gloo's would end the process with SIGABRT now and then.
    # Python takes handlers back at its end, where a late stop would kill this rank, and torchrun of another node would wait for this one.
    ignore_stop_signals()
    return 0


def exit_report() -> Path:
    """Return the file for the report of stage train, here of one of its ranks, that ends without passing through its process's end."""
    return _rank_exit() if "TORCHELASTIC_RUN_ID" in os.environ else exit_file("train")


def _rank_exit() -> Path:
    """Return the file with the report of this node's ranks; the nodes of a training share the folder."""
    return exit_file(f"train-rank-{os.environ.get('TRANSFORMER_NODE_RANK', '0')}")


def _pass_on(number: int, _frame: FrameType | None) -> None:
    """Pass a stop signal on to the ranks, which torchrun starts in sessions of their own; end if it has not started them yet.

    Once they have saved, torchrun waits for those of the other nodes, which would wait for it.
    """
    ranks = psutil.Process().children()
    if not ranks and not _rank_exit().exists():
        os._exit(ExitCode.INTERRUPTED)
    for rank in ranks:
        with suppress(psutil.NoSuchProcess):
            rank.send_signal(number)


def main(arguments: Sequence[str]) -> int:
    """Run torchrun, and return 0, the code of the rank because of which the others ended (`deciding`), or 69 if a node is missing.

    One line names the rank unless it has reported its exit.
    """
    hold_stop_signals()
    from torch.distributed import DistError
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    handle_stop_signals(_pass_on)
    release_stop_signals()
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # Rank 0 draws its progress from a group in the background of the terminal.
    os.environ[STARTERS] = f"{os.environ.get(STARTERS, '')} {os.getpid()}"
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        # Without a log directory torchrun makes one in the temporary folder for each training, and leaves it. It must handle a signal.
        torchrun.main(["--signals-to-handle=SIGQUIT", f"--log-dir={os.devnull}", *arguments])
    except ChildFailedError as error:
        end = error.get_first_failure()[1].timestamp + _KILL_SECONDS
        codes = {rank: shell_code(failure.exitcode) for rank, failure in error.failures.items() if failure.timestamp < end}
        code = deciding(codes.values())
        if code not in set(ExitCode):
            rank = next(rank for rank in codes if codes[rank] == code)
            print(f"rank {rank} failed first: {in_words(code)}", file=sys.stderr, flush=True)
        return code
    except DistError as error:
        print(f"no rendezvous with the other nodes: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        return ExitCode.UNAVAILABLE
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
