"""The ranks of a training under torchrun. The stage starts them, and each reports its exit code, because torchrun itself ends with 1.

    python -m flows.cluster.ranks --standalone --nproc-per-node=2 -m flows.stages.train

takes the arguments of torchrun; for several machines, flows/cluster/group.py adds `--nnodes`, `--node-rank` and the rendezvous. Stop
signals reach the ranks directly: `run_child` sends them to every process, and a terminal to the whole process group. torchrun is made to
ignore them, because it would end ranks that are saving, and print a traceback.
"""

import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

from flows.cluster.group import NodeGroup
from flows.process.child import run_child
from flows.process.runner import (
    SIGNALLED,
    STARTERS,
    STOP_SIGNALS,
    echo,
    exit_file,
    exit_with_starters,
    memory_remedy,
    report_exit,
    shell_code,
)
from transformer_core.errors import ExitCode, Interrupted, UserError, machine_errors
from transformer_core.files import read_json

FAILED = 1
_RANK_EXIT = exit_file("train-rank")


def launch(devices: int, group: NodeGroup | None) -> None:
    """Run stage train under torchrun, with a rank for each device. A stop signal makes all ranks, on all nodes of a group, save and end.

    Raises:
        UserError: the error of a rank; exit code 69 if another node was lost or never came, 75 if a signal ended a rank, as the kernel does
            when memory runs out.
        Interrupted: the ranks were stopped and have saved.
    """
    _RANK_EXIT.unlink(missing_ok=True)
    nodes = ["--standalone"] if group is None else group.torchrun()
    ranks = [sys.executable, "-m", "flows.cluster.ranks", *nodes, f"--nproc-per-node={devices}", "-m", "flows.stages.train"]
    # Only silences torchrun's warning about this default; each rank sets its number of threads itself.
    environment = {"OMP_NUM_THREADS": "1"} | (group.interfaces() if group else {})
    try:
        code = shell_code(run_child(ranks, lambda line: echo(line, sys.stderr), environment=environment))
    except Interrupted:
        if not _RANK_EXIT.exists():
            raise
        code = ExitCode.INTERRUPTED  # The ranks have saved; their report names the update.
    if _RANK_EXIT.exists():
        report = read_json(_RANK_EXIT)
        if report["code"] == ExitCode.INTERRUPTED:
            raise Interrupted(report["message"])
        raise UserError(report["message"], report["remedy"], ExitCode(report["code"]))
    if code and group is not None:
        node = f"node {group.rank} of {group.nodes}"
        message = f"{node}: the ranks ended with {code}: another node was lost or did not come to {group.rendezvous}"
        raise UserError(message, "Their output is above. Run all of them again to go on.", ExitCode.UNAVAILABLE)
    if code > SIGNALLED:
        name = signal.Signals(code - SIGNALLED).name
        remedy = "Run it again to go on from the last state. Was it memory? Then lower train.tokens_per_microbatch."
        raise UserError(f"the ranks were ended by {name}", remedy, ExitCode.INTERRUPTED)
    if code:
        raise RuntimeError(f"the ranks ended with {code} and no report; their output is above")


def run_rank(body: Callable[[], None]) -> int:
    """Run one rank and report its exit. A stopped rank returns 0 after it has saved, because torchrun ends all ranks if one fails."""
    exit_with_starters()
    try:
        with machine_errors("train", memory_remedy("train")):
            body()
    except Interrupted as error:
        report_exit(_RANK_EXIT, ExitCode.INTERRUPTED, str(error))
    except UserError as error:
        report_exit(_RANK_EXIT, error.exit_code, error.message, error.remedy)
        return error.exit_code
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run torchrun, and return 0, or 1 if a rank failed or a node is missing. One line names the rank unless it has reported its exit.

    If a signal ended a rank, as the kernel does when memory runs out, the result is 128 plus the signal: other ranks fail because of it.
    """
    from torch.distributed import DistError
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)  # Not SIG_IGN, which the ranks would inherit.
    os.environ[STARTERS] = f"{os.environ.get(STARTERS, '')} {os.getpid()}"
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        # Without a log directory torchrun makes one in the temporary folder for each training, and leaves it.
        torchrun.main(["--signals-to-handle=SIGHUP", f"--log-dir={os.devnull}", *arguments])
    except ChildFailedError as error:
        killed = {rank: failure for rank, failure in error.failures.items() if failure.exitcode < 0}
        rank, failure = next(iter(killed.items())) if killed else error.get_first_failure()
        if failure.exitcode not in set(ExitCode):
            print(f"rank {rank} failed first: {_in_words(failure.exitcode)}", file=sys.stderr, flush=True)
        return shell_code(failure.exitcode) if killed else FAILED
    except DistError as error:
        print(f"no rendezvous with the other nodes: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        return FAILED
    return 0


def _in_words(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
