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
from flows.record.store import tracking_uri
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
    parser = Parser(
        prog="python -m flows.translate",
        description="Translate standard input with a model from the MLflow registry at machine.tracking_uri or $MLFLOW_TRACKING_URI.",
    )
    parser.add_argument("model", metavar="NAME@ALIAS", help="or NAME/VERSION")
    parser.add_argument("options", metavar="...", nargs=argparse.REMAINDER, help="options of `transformer-core translate`, except --model")
    chosen = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        directory = fetch(chosen.model, _registry(), Path(folder))
        return cli.main(["translate", "--model", str(directory), *chosen.options])


if __name__ == "__main__":
    raise SystemExit(main())
