"""python -m flows.stages NAME: run a stage or, under torchrun, one rank of stage train.

Stop signals wait until the stage's module is imported: some load torch for seconds, and a signal then would end in a traceback.
"""

import os
import pkgutil
from importlib import import_module
from types import ModuleType

from flows import stages
from flows.process.signals import hold_stop_signals, release_stop_signals


def main() -> int:
    """Return the exit code of the stage."""
    hold_stop_signals()
    from flows.process.runner import reports_errors, run_stage
    from transformer_core.cli.arguments import Parser
    from transformer_core.config import load_params

    parser = Parser(prog="python -m flows.stages", description="Run one stage; its settings are in params.yaml.")
    parser.add_argument("name", choices=[module.name for module in pkgutil.iter_modules(stages.__path__) if module.name != "__main__"])

    @reports_errors
    def run() -> int:
        name = parser.parse_args().name
        if "TORCHELASTIC_RUN_ID" in os.environ:
            from flows.cluster.ranks import run_rank

            return run_rank(lambda: _module(name).train(load_params()))
        return run_stage(name, lambda params: str(_module(name).run(params)))

    return run()


def _module(name: str) -> ModuleType:
    module = import_module(f"flows.stages.{name}")
    release_stop_signals()
    return module


if __name__ == "__main__":
    raise SystemExit(main())
