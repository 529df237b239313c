"""`transformer-core states`: list or remove the states of stopped trainings."""

import argparse
from datetime import datetime
from pathlib import Path

from transformer_core.cli.arguments import Commands, add_command
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.files import is_locked


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "states", run, "list or remove the saved states of trainings", "--remove all")
    parser.add_argument("--remove", metavar="NAME", nargs="+", default=[], help="names from the list, or `all`")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each training, or remove some. Raises `UserError`: 78 for an unknown name; 69 for a training that is running."""
    from transformer_core.training.checkpoint import TRAINING_LOCK, remove_training, state_root, stopped_trainings

    root = state_root()
    found = {directory.name: directory for directory in stopped_trainings(root)}
    chosen = list(found) if arguments.remove == ["all"] else dict.fromkeys(arguments.remove)
    for name in chosen:
        if name not in found:
            raise configuration_error(f"{root / name}: no state of a stopped training", "See: transformer-core states")
        if is_locked(found[name] / TRAINING_LOCK):
            raise UserError(f"{found[name]}: this training is running", "Remove its state when it has ended.", ExitCode.UNAVAILABLE)
    for name in chosen:
        remove_training(found[name])
        print(f"removed {found[name]}")
    if arguments.remove:
        return 0
    for directory in found.values():
        print(_described(directory))
    if not found:
        print(f"{root}: no training was stopped here")
    return 0


def _described(directory: Path) -> str:
    """Return name, update, size and time of saving."""
    from transformer_core.training.checkpoint import FINISHED, TRAINING_LOCK, is_whole, state_files, update_of

    whole = next((file for file in state_files(directory) if is_whole(file)), None)
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    if whole is None:
        return f"{directory.name}  no whole state, {size / 1e6:,.0f} MB"
    saved = datetime.fromtimestamp(whole.stat().st_mtime).astimezone()
    running, finished = is_locked(directory / TRAINING_LOCK), (directory / FINISHED).exists()
    status = ", running" if running else ", finished" if finished else ""
    return f"{directory.name}  update {update_of(whole):,}{status}, {size / 1e6:,.0f} MB, saved {saved:%Y-%m-%d %H:%M}"
