"""The ranks of a training. The stage starts them under torchrun, and each reports its exit code, because torchrun itself ends with 1."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from flows.places.group import NodeGroup
from flows.process.child import run_child
from flows.process.exits import SIGNALLED, in_words
from flows.process.progress import RankOutput
from flows.process.runner import echo, exit_file, exit_with_starters, memory_remedy, report_exit
from flows.process.signals import stop_on_signals
from transformer_core.errors import ExitCode, Interrupted, UserError, machine_errors
from transformer_core.files import read_json

# Within them torchrun sees that a rank of its machine has ended, and stops the others.
_TORCHRUN_SECONDS = 10


def launch(devices: int, group: NodeGroup | None) -> None:
    """Run stage train under torchrun, with a rank for each device. A stop signal makes all ranks, on all nodes of a group, save and end.

    Raises:
        UserError: the error of a rank; exit code 69 if another node was lost or never came, 75 if a signal ended a rank, as the kernel does
            when memory runs out.
        Interrupted: the ranks were stopped and have saved.
    """
    rank_exit = _rank_exit()
    rank_exit.unlink(missing_ok=True)
    nodes = ["--standalone"] if group is None else group.torchrun()
    ranks = [sys.executable, "-m", "flows.places.torchrun", *nodes, f"--nproc-per-node={devices}", "-m", "flows.stages", "train"]
    # The first only silences torchrun's warning about this default; each rank sets its number of threads itself. The second silences
    # c10d's warnings about machines whose addresses have no name.
    environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"} | (group.interfaces() if group else {})
    try:
        with closing(RankOutput()) as drawn:
            code = run_child(ranks, drawn, environment=environment | drawn.environment)
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
    if code in (ExitCode.BAD_DATA, ExitCode.BAD_CONFIGURATION):  # A rank cannot write its report to a full disk.
        raise UserError(f"a rank ended with {code}", "Its message is above.", ExitCode(code))
    if code == ExitCode.UNAVAILABLE:
        where = "" if group is None else f" on one of {group.nodes} nodes, or a node did not reach {group.rendezvous}"
        lost = f"a rank was lost{where}"
        raise UserError(lost, "The output of the ranks is above. Run it again to resume.", ExitCode.UNAVAILABLE)
    if code > SIGNALLED:
        remedy = "Run it again to resume from the last state. If memory ran out, lower train.tokens_per_microbatch."
        raise UserError(f"the ranks: {in_words(code)}", remedy, ExitCode.INTERRUPTED)
    if code:
        raise RuntimeError(f"the ranks ended with {code} and no report; their output is above")


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
        if not rank_exit.exists():
            echo(str(error), sys.stderr)
        return error.exit_code
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        echo("the connection to another rank was lost", sys.stderr)
        # If that rank was of this machine, torchrun stops this one, and says which one failed first.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_TORCHRUN_SECONDS)
        os._exit(ExitCode.UNAVAILABLE)  # Without destructors: gloo's would end the process with SIGABRT now and then.
    return 0


def _rank_exit() -> Path:
    """Return the file with the report of this node's ranks; the nodes of a training share the folder."""
    return exit_file(f"train-rank-{os.environ.get('TRANSFORMER_NODE_RANK', '0')}")


def _is_lost_connection(error: RuntimeError) -> bool:
    """Return whether an error is that of a collective operation whose other side has ended; gloo's has no type of its own."""
    import torch

    return isinstance(error, torch.distributed.DistError) or "/gloo/" in str(error)
