"""torchrun as a stage starts it: ``python -m flows.cluster.ranks --standalone --nproc-per-node=2 -m flows.stages.train``.

Over several machines `--nnodes`, `--node-rank` and the rendezvous come before that (flows/cluster/gang.py).

Signals to stop are between a stage and its ranks: `run_child` sends them to every process, and a terminal to the whole group. torchrun
would answer them by ending ranks that are saving, and with a traceback of its own above what they have to say.
"""

import logging
import signal
import sys
from collections.abc import Sequence

from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from flows.process.runner import STOP_SIGNALS, shell_code
from transformer_core.errors import ExitCode

FAILED = 1


def main(arguments: Sequence[str]) -> int:
    """Run the ranks to their end; 1 where one has failed, named in one line unless it ended with a code that it chose.

    Where a signal ended one, as the kernel does when memory runs out, 128 and the signal's number: the others fail only because of it.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)  # Not ignored: that the ranks would inherit.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        torchrun.main(["--signals-to-handle=SIGHUP", *arguments])
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
