"""Paths of the stages' outputs, relative to the repository, and what dvc.yaml says of each stage: its sections, its outputs."""

from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from transformer_core.config import Params
from transformer_core.errors import UserError
from transformer_core.project import text_of
from transformer_core.yaml_io import parse_yaml, read_yaml

LOCAL_FILES = Path("local_files")
RAW = Path("data/raw")
MANIFEST = RAW / "manifest.json"
CLEAN = Path("data/clean")
SUBWORD_MODEL = Path("data/bpe/spm.model")
BINARIZED = Path("data/binarized")
CHECKPOINTS = Path("models/checkpoints")
CHECKPOINT_SCORES = CHECKPOINTS / "scores.json"
AVERAGED = Path("models/averaged")
TRAINING = Path("results/training")
TRAINING_METRICS = TRAINING / "metrics.json"
UPDATES, VALIDATION, SKIPPED = (TRAINING / f"{name}.csv" for name in ("updates", "validation", "skipped"))
# The column of validation.csv for the main score; the same for every task, so that one plot of dvc.yaml shows it.
VALIDATION_SCORE = "score"
DECODED = Path("results/decode")
HYPOTHESES = "test.hyp"  # The outputs for the main test set: in DECODED, and by this name in MLflow.
START = "start"  # The folder in DECODED with the outputs of the model that the training started from, if it started from one.
SCORES = Path("results/scores.json")
METRICS = Path("results/metrics.json")  # The numbers of the training and of SCORES that `dvc metrics show` prints.
BY_LENGTH = Path("results/by_length.csv")
REPORT = Path("results/report.html")
SENTENCES = Path("results/sentences.html")
PUBLISHED = Path("results/published.json")
STATE = Path(".state")
DVC_LOCK = Path("dvc.lock")


@cache
def stages() -> dict[str, dict[str, Any]]:
    """Return the stages of this package, by name, as its dvc.yaml has them; a project may run them with other dependencies."""
    return dict(parse_yaml(text_of("dvc.yaml"), "dvc.yaml")["stages"])


def sections_of(stage: str) -> list[str]:
    """Return the sections of params.yaml on which a stage depends; none for a name that is no stage."""
    return list(stages().get(stage, {}).get("params", []))


def sections_up_to(stage: str) -> list[str]:
    """Return the sections of params.yaml on which a stage or one before it depends, in order; all of them for a name that is no stage."""
    names = (*takewhile(lambda name: name != stage, stages()), stage)
    return list(dict.fromkeys(section for name in names for section in sections_of(name)))


def settings_up_to(stage: str, params: Params) -> dict[str, Any]:
    """Return the settings in `sections_up_to` of a stage."""
    return params.model_dump(mode="json", include={*sections_up_to(stage)})


def locked_stages() -> dict[str, Any]:
    """Return the stages in dvc.lock, by name; none without the file."""
    return dict((read_yaml(DVC_LOCK) or {"stages": {}})["stages"]) if DVC_LOCK.exists() else {}


def require(*paths: Path) -> None:
    """Raise a `UserError` (exit code 65) for the first path that does not exist; it names the stage that makes it."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file", f"Make it with: dvc repro {_made_by(path)}")


def rerun_remedy(path: Path) -> str:
    """Return the remedy for an output that is wrong: the command that runs the stage that makes it, and no other, again."""
    return f"Make it again with: dvc repro --force --single-item {_made_by(path)}"


def _made_by(path: Path) -> str:
    """Return the stage among whose outputs is a path, or a folder above it. DVC writes an output with options as a mapping of its path."""
    outputs = ((name, output) for name, stage in stages().items() for output in (*stage.get("outs", []), *stage.get("metrics", [])))
    return next(name for name, output in outputs if path.is_relative_to(output if isinstance(output, str) else next(iter(output))))
