"""`python -m flows.translate NAME@champion < in > out`: translate lines with a model of the registry."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import finalize

import transformer_core
from flows.process.runner import reports_errors
from flows.record.registry import fetch
from flows.record.server import tracking_uri
from transformer_core import cli
from transformer_core.cli.arguments import Parser
from transformer_core.config import PARAMS_FILE, Machine, load_params
from transformer_core.decoding.library import LoadedModel


def load(model: str) -> LoadedModel:
    """Return a model of the registry, models:/NAME@ALIAS or models:/NAME/VERSION, for translation in another program.

    Raises `UserError`: 78 if the registry has no such version, 69 if it is unavailable.
    """
    folder = TemporaryDirectory()
    loaded = transformer_core.load(fetch(model.removeprefix("models:/"), _registry(), Path(folder.name)))
    finalize(loaded, folder.cleanup)  # An engine is loaded from there when it is first needed.
    return loaded


def _registry() -> str:
    """Return the registry's address; a machine that only translates needs no params.yaml."""
    return tracking_uri(Machine() if os.environ.get("MLFLOW_TRACKING_URI") and not PARAMS_FILE.exists() else load_params().machine)


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the model and run `transformer-core translate` with the options given; return its exit code."""
    return run_with_model("flows.translate", "Translate standard input", ["translate"], "--model", arguments)


def run_with_model(module: str, purpose: str, command: Sequence[str], option: str, arguments: Sequence[str] | None) -> int:
    """Fetch the model that the arguments name, and run a command with the rest of them and the model as an option."""
    description = f"{purpose} with a model from the MLflow registry at machine.tracking_uri or $MLFLOW_TRACKING_URI."
    parser = Parser(prog=f"python -m {module}", description=description)
    parser.add_argument("model", metavar="NAME@ALIAS", help="or NAME/VERSION")
    rest = f"arguments of `transformer-core {' '.join(command)}`, except {option}"
    parser.add_argument("options", metavar="...", nargs=argparse.REMAINDER, help=rest)
    chosen = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        return cli.main([*command, option, str(fetch(chosen.model, _registry(), Path(folder))), *chosen.options])


if __name__ == "__main__":
    raise SystemExit(main())
