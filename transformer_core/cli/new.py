"""`transformer-core new`: create the files of a project for an installed package, without a clone."""

import argparse
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "new",
        "lay out a project for the installed package: params.yaml, dvc.yaml, corpora/, ...",
        "transformer-core new my-project",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="its folder; files that are there are kept")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Create the files and print which existing ones were kept."""
    from transformer_core.project import new_project

    for path in new_project(arguments.folder):
        print(f"{path}: kept, although it differs from the package's. To get that one, remove the file and run this again.")
    print(f"{arguments.folder} is a project. Next, in that folder: dvc repro")
    return 0
