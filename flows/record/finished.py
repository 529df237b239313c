"""Finished trainings, whose outputs DVC may have failed to store. No part of it can change a result."""

from hashlib import md5
from math import inf
from pathlib import Path

from flows.process.paths import TRAINING_METRICS, locked_stages
from transformer_core.config import Train
from transformer_core.files import write_text
from transformer_core.training.checkpoint import FINISHED, STORED, remove_training


def mark_finished(settings: Train, state: Path) -> None:
    """Note in the state that the training has ended with these settings and written its outputs."""
    digest = md5(TRAINING_METRICS.read_bytes(), usedforsecurity=False).hexdigest()
    write_text(state / FINISHED, f"{digest} {settings.updates} {settings.patience}")


def only_outputs_are_missing(settings: Train, state: Path, first: bool) -> bool:
    """Return whether the training has finished and its outputs were lost: the first node writes them again, and needs no other node.

    DVC has failed to store them, for example on a full disk, and removes them before it runs the stage again. If it has stored them, the
    training is forced to run again, or is to end earlier, and the first node removes the state. To a later end the training goes on.
    """
    finished, stored = state / FINISHED, (state / STORED).exists()
    if not finished.exists():
        return False
    metrics, *end = finished.read_text(encoding="utf-8").split()
    updates, patience = map(int, end)
    same = (settings.updates, settings.patience) == (updates, patience)
    is_later = settings.updates >= updates and (settings.patience or inf) >= (patience or inf)
    recorded = {output["path"]: output.get("md5") for output in locked_stages().get("train", {}).get("outs", [])}
    if same and not stored and recorded.get(TRAINING_METRICS.as_posix()) != metrics:
        return True
    if first and (same or (stored and not is_later)):
        remove_training(state)
    return False
