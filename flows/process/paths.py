"""Where each stage's outputs lie, relative to the repository (the same paths as in dvc.yaml)."""

from pathlib import Path

SPLITS = ("train", "valid", "test")

CORPORA = Path("corpora")
RAW = Path("data/raw")
CLEAN = Path("data/clean")
SUBWORD_MODEL = Path("data/bpe/spm.model")
BINARIZED = Path("data/binarized")
CHECKPOINTS = Path("models/checkpoints")
SCORES = CHECKPOINTS / "scores.json"
AVERAGED = Path("models/averaged")
TRAINING = Path("results/training")
# The column of validation.csv there for the score of outputs, one name for every task, so that one plot of dvc.yaml shows it.
VALIDATION_SCORE = "score"
DECODED = Path("results/decode")
METRICS = Path("results/metrics.json")
BY_LENGTH = Path("results/by_length.csv")
BY_PHENOMENON = Path("results/by_phenomenon.csv")
REPORT = Path("results/report.html")
PUBLISHED = Path("results/published.json")
STATE = Path(".state")
