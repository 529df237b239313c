"""torchrun, made to leave stop signals to the ranks and to name the rank that failed first.

    python -m flows.cluster.torchrun --standalone --nproc-per-node=2 -m flows.stages train

takes the arguments of torchrun; for several machines, flows/cluster/group.py adds `--nnodes`, `--node-rank` and the rendezvous. Stop
signals reach the ranks directly: `run_child` sends them to every process, and a terminal to the whole process group. torchrun itself would
end ranks that are saving, and print a traceback.
"""

import logging
import os
import sys
from collections.abc import Sequence

from flows.process.exits import deciding, in_words, shell_code
from flows.process.signals import handle_stop_signals, hold_stop_signals, release_stop_signals
from transformer_core.errors import ExitCode

_KILL_SECONDS = 30


def main(arguments: Sequence[str]) -> int:
    """Run torchrun, and return 0, the code of the rank because of which the others ended (`deciding`), or 69 if a node is missing.

    One line names the rank unless it has reported its exit.
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
        # torchrun kills what has not ended some time after the first failure.
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
