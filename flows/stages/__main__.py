"""python -m flows.stages NAME: run a stage or, under torchrun, one rank of stage train.

Stop signals wait until the stage's module is imported: some load torch for seconds, and a signal then would end in a traceback.
"""

import os
import sys
from importlib import import_module
from types import ModuleType

from flows.process.signals import hold_stop_signals, release_stop_signals


def main() -> int:
    """Return the exit code of the stage."""
    hold_stop_signals()
    from flows.process.runner import reports_errors

    return reports_errors(_run)()


def _run() -> int:
    from flows.process.paths import stages
    from flows.process.runner import run_here, run_stage
    from transformer_core.cli.arguments import Parser
    from transformer_core.config import load_params

    parser = Parser(prog="python -m flows.stages", description="Run one stage; its settings are in params.yaml.")
    parser.add_argument("name", choices=list(stages()))
    parser.add_argument("--here", action="store_true", help="as a node of a job: run it on this machine, whatever machine.places says")
    options = parser.parse_args()
    name: str = options.name

    def body() -> str:
        params = load_params()
        if name in params.machine.places:
            from flows.places.jobs import run_elsewhere

            release_stop_signals()
            return run_elsewhere(name, params.machine.places[name], params)
        return run_here(name, _module(name).run)

    if "TORCHELASTIC_RUN_ID" in os.environ:
        from flows.places.ranks import run_rank

        return run_rank(lambda: _module(name).train(load_params()))
    if not options.here:
        return run_stage(name, body)
    # Node 0 writes the outputs, under the same lock as a stage without a place.
    rank = os.environ.get("TRANSFORMER_NODE_RANK", "0")
    return run_stage(name, lambda: run_here(name, _module(name).run, "" if rank == "0" else f"{name}-{rank}"), f"{name}-node-{rank}")


def _module(name: str) -> ModuleType:
    module = import_module(f"flows.stages.{name}")
    release_stop_signals()
    return module


if __name__ == "__main__":
    code = main()
    if code:
        sys.stdout.flush()
        os._exit(code)  # Not by Python's end, where CTranslate2 would first translate what waits in its queue.
    raise SystemExit(code)
