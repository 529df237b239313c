"""`transformer-core doctor`, `new` and `recipe`: check a machine and repository, create a project, write a params.yaml."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command, dvc_repro


def add_to(commands: Commands) -> None:
    doctor = add_command(commands, "doctor", run_doctor, "check this machine and repository", "--cluster")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--cluster", action="store_true", help="check what stages elsewhere need, too: artifacts in MLflow, Slurm")
    summary = "make a project for the installed package: params.yaml, dvc.yaml, corpora/ and others"
    new = add_command(commands, "new", run_new, summary, "my-project")
    new.add_argument("folder", metavar="DIR", type=Path, help="folder of the project; existing files are kept, except in installed/")
    recipe = add_command(commands, "recipe", run_recipe, "list the recipes, or write one as params.yaml", "multi30k")
    recipe.add_argument("name", metavar="NAME", nargs="?", help="recipe to write (default: list all recipes)")
    recipe.add_argument("--force", action="store_true", help="replace an edited params.yaml")


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print a line for each check; return the exit code of the first problem, or 0 (warnings are not problems)."""
    from transformer_core.doctor import examine

    findings = list(examine(cluster=arguments.cluster))
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            remedy = f" {finding.remedy}" if finding.remedy else ""
            print(f"{finding.status:<8}{finding.name:<11}{finding.detail}{'.' if remedy else ''}{remedy}")
    return next((finding.exit_code for finding in findings if finding.status == "problem"), 0)


def run_new(arguments: argparse.Namespace) -> int:
    """Create the files and print which existing ones were kept."""
    from transformer_core.project import new_project

    for path in new_project(arguments.folder):
        print(f"{path}: kept, although it differs from the package's. To get that one, remove the file and run this again.")
    print(f"{arguments.folder} is a project. Next, in that folder: dvc repro")
    return 0


def run_recipe(arguments: argparse.Namespace) -> int:
    from transformer_core import recipes
    from transformer_core.config import PARAMS_FILE

    if arguments.name is None:
        width = max(map(len, recipes.names()))
        for name in recipes.names():
            print(f"{name:<{width}}  {recipes.description(name)}")
        return 0
    recipes.write(recipes.read(arguments.name), PARAMS_FILE, force=arguments.force)
    # It names no corpus that exists.
    follows = "transformer-core data new NAME FILE [FILE]" if arguments.name == recipes.OWN_DATA else dvc_repro()
    print(f"{PARAMS_FILE} is the recipe {arguments.name}. Next: {follows}")
    return 0
