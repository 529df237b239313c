"""`python -m flows.translate NAME@champion < in > out`: translate lines with a model of the registry."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.process.runner import reports_errors
from flows.record.registry import fetch
from flows.record.store import tracking_uri
from transformer_core import cli
from transformer_core.cli.arguments import Parser
from transformer_core.config import PARAMS_FILE, Machine, load_params


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
    # A machine that only translates needs no params.yaml.
    machine = Machine() if os.environ.get("MLFLOW_TRACKING_URI") and not PARAMS_FILE.exists() else load_params().machine
    with TemporaryDirectory() as folder:
        directory = fetch(chosen.model, tracking_uri(machine), Path(folder))
        return cli.main(["translate", "--model", str(directory), *chosen.options])


if __name__ == "__main__":
    raise SystemExit(main())
