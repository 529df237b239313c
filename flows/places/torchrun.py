"""torchrun, made to leave stop signals to the ranks and to name the rank that failed first.

    python -m flows.places.torchrun --standalone --nproc-per-node=2 -m flows.stages train

takes the arguments of torchrun; for several machines, flows/places/group.py adds `--nnodes`, `--node-rank` and the rendezvous. Stop
signals reach the ranks directly: `run_child` sends them to every process, and a terminal to the whole process group. torchrun itself would
end ranks that are saving, and print a traceback.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from flows.process.signals import handle_stop_signals, hold_stop_signals, release_stop_signals, shell_code
from transformer_core.errors import ExitCode

FAILED = 1


def main(arguments: Sequence[str]) -> int:
    """Run torchrun, and return 0, or 1 if a rank failed or a node is missing. One line names the rank unless it has reported its exit.

    If a rank ended with 65 or 78, that is the result: the other ranks are stopped because of it. Otherwise, if a signal ended a rank, as
    the kernel does when memory runs out, the result is 128 plus the signal: other ranks fail because of it.
    """
    hold_stop_signals()
    from torch.distributed import DistError
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from flows.process.runner import STARTERS

    handle_stop_signals(lambda *_: None)  # Not SIG_IGN, which the ranks would inherit.
    release_stop_signals()
    os.environ[STARTERS] = f"{os.environ.get(STARTERS, '')} {os.getpid()}"
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        # Without a log directory torchrun makes one in the temporary folder for each training, and leaves it. It must handle a signal.
        torchrun.main(["--signals-to-handle=SIGQUIT", f"--log-dir={os.devnull}", *arguments])
    except ChildFailedError as error:
        if refused := {failure.exitcode for failure in error.failures.values()} & {ExitCode.BAD_DATA, ExitCode.BAD_CONFIGURATION}:
            return refused.pop()
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
