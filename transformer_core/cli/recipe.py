"""`transformer-core recipe`: list the packaged params files, or write one as params.yaml."""

import argparse

from transformer_core.cli.arguments import Commands, add_command, dvc_repro


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "recipe", "list the recipes, or write one as params.yaml", "transformer-core recipe multi30k")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the recipe to write; none lists them")
    parser.add_argument("--force", action="store_true", help="replace an edited params.yaml")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the recipes, or write one."""
    from transformer_core import recipes
    from transformer_core.config import PARAMS_FILE

    if arguments.name is None:
        width = max(map(len, recipes.names()))
        for name in recipes.names():
            print(f"{name:<{width}}  {recipes.description(name)}")
        return 0
    recipes.write(recipes.read(arguments.name), PARAMS_FILE, force=arguments.force)
    print(f"{PARAMS_FILE} is the recipe {arguments.name}. Next: {dvc_repro()}")
    return 0
