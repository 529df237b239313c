"""`transformer-core doctor`, `new`, `recipe` and `states`: check a machine, create a project, write a params.yaml, list saved states."""

import argparse
import json
from datetime import datetime
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command, dvc_repro
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.files import is_locked


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
    states = add_command(commands, "states", run_states, "list or remove the saved states of trainings", "--remove all")
    states.add_argument("--remove", metavar="NAME", nargs="+", default=[], help="names from the list, or `all`")


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print a line for each check; return the exit code of the first problem, or 0 (warnings are not problems)."""
    from transformer_core.doctor import examine

    findings = list(examine(cluster=arguments.cluster))
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
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
    follows = "transformer-core data new NAME FILE [FILE]" if arguments.name.startswith(recipes.OWN_DATA) else dvc_repro()
    print(f"{PARAMS_FILE} is the recipe {arguments.name}. Next: {follows}")
    return 0


def run_states(arguments: argparse.Namespace) -> int:
    """Print a line for each training, or remove some. Raises `UserError`: 78 for an unknown name; 69 for a training that is running."""
    from transformer_core.training import checkpoint

    root = checkpoint.state_root()
    found = {directory.name: directory for directory in checkpoint.stopped_trainings(root)}
    chosen = list(found) if arguments.remove == ["all"] else dict.fromkeys(arguments.remove)
    for name in chosen:
        if name not in found:
            raise configuration_error(f"{root / name}: no state of a stopped training", "See: transformer-core states")
        if is_locked(found[name] / checkpoint.TRAINING_LOCK):
            raise UserError(f"{found[name]}: this training is running", "Remove its state when it has ended.", ExitCode.UNAVAILABLE)
    for name in chosen:
        checkpoint.remove_training(found[name])
        print(f"removed {found[name]}")
    for name, directory in found.items() if not arguments.remove else ():
        whole = next(filter(checkpoint.is_whole, checkpoint.state_files(directory)), None)
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        if whole is None:
            print(f"{name}  no whole state, {size / 1e6:,.0f} MB")
            continue
        saved = datetime.fromtimestamp(whole.stat().st_mtime).astimezone()
        running, finished = is_locked(directory / checkpoint.TRAINING_LOCK), (directory / checkpoint.FINISHED).exists()
        status = ", running" if running else ", finished" if finished else ""
        print(f"{name}  update {checkpoint.update_of(whole):,}{status}, {size / 1e6:,.0f} MB, saved {saved:%Y-%m-%d %H:%M}")
    if not found:
        print(f"{root}: no training was stopped here")
    return 0
