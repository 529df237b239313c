"""`transformer-core export`: write a model directory for another engine."""

import argparse
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command, in_bytes
from transformer_core.errors import configuration_error


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "export",
        "write a model for another engine",
        "transformer-core export --format ctranslate2 --model models/averaged --out exported",
    )
    parser.add_argument("--format", choices=("ctranslate2",), required=True, help="which engine: %(choices)s")
    parser.add_argument("--model", metavar="DIR", type=Path, required=True, help="for example models/averaged")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="directory to write; replaces an earlier export")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the directory and print its size."""
    from transformer_core.decoding.translator import load_with_subword
    from transformer_core.export.ctranslate2 import export_model

    if arguments.out.resolve() == Path.cwd():
        raise configuration_error("--out: is the working directory, which would be replaced", "Name a new folder.")
    model, _ = load_with_subword(arguments.model)
    export_model(model, arguments.model, arguments.out)
    size = sum(file.stat().st_size for file in arguments.out.iterdir())
    print(f"{arguments.out}: a model for CTranslate2, {in_bytes(size)}")
    return 0
