"""Paths of the stages' outputs, relative to the repository, as in dvc.yaml, and the stage that makes each."""

from pathlib import Path

from transformer_core.errors import UserError

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
SCORES = Path("results/scores.json")
METRICS = Path("results/metrics.json")  # The numbers of the training and of SCORES that `dvc metrics show` prints.
BY_LENGTH = Path("results/by_length.csv")
REPORT = Path("results/report.html")
SENTENCES = Path("results/sentences.html")
PUBLISHED = Path("results/published.json")
STATE = Path(".state")
DVC_LOCK = Path("dvc.lock")

_MADE_BY = {
    RAW: "download",
    CLEAN: "clean",
    CHECKPOINTS: "train",
    TRAINING: "train",
    AVERAGED: "average",
    DECODED: "decode",
    SCORES: "evaluate",
    REPORT: "evaluate",
    SENTENCES: "evaluate",
    PUBLISHED: "publish",
}


def require(*paths: Path) -> None:
    """Raise a `UserError` (exit code 65) for the first path that does not exist; it names the stage that makes it."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file", f"Make it with: dvc repro {_made_by(path)}")


def rerun_remedy(path: Path) -> str:
    """Return the remedy for an output that is wrong: the command that runs the stage that makes it, and no other, again."""
    return f"Make it again with: dvc repro --force --single-item {_made_by(path)}"


def _made_by(path: Path) -> str:
    return next(stage for made, stage in _MADE_BY.items() if path.is_relative_to(made))
