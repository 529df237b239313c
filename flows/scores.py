"""`python -m flows.scores`: the scores of the last run as a table (`dvc metrics show` has them too, in one line of 200 columns)."""

import sys
from pathlib import Path
from typing import Any

from flows.process.paths import METRICS, REPORT
from flows.record.tasks import Task, task_scored
from transformer_core.errors import UserError
from transformer_core.files import read_json


def table(figures: dict[str, Any]) -> str:
    """The content of results/metrics.json for a terminal of 80 columns."""
    task = task_scored(figures)
    corpus = f"{figures['corpus']} (generated text)" if figures["synthetic"] else figures["corpus"]
    columns = _COLUMNS[task.score]
    heads = "".join(f"{name:>{width}}" for name, width in columns.values())
    rows = [f"{corpus:<30}{task.score:>8}{'95% interval':>15}{heads}"]
    for split, scores in (("valid", figures["valid"]), ("test", figures)):
        interval = f"{scores[f'{task.key}_low']:.2f}-{scores[f'{task.key}_high']:.2f}"
        others = "".join(f"{scores[key]:>{width}.2f}" for key, (_, width) in columns.items())
        rows.append(f"{split:<30}{scores[task.key]:>8.2f}{interval:>15}{others}")
    return "\n".join([*rows, f"{task.score} is {figures['signature']}, test has {figures['lines']:,} lines", *_notes(figures, task)])


def _notes(figures: dict[str, Any], task: Task) -> list[str]:
    shares = [f"{figures[name]:.1f}% {_SHARES[name]}" for name in task.shares]
    notes = [f"Of the test outputs {', '.join(shares)}", f"Report: {REPORT}"]
    if "paper_bleu" in task.scores:
        notes.insert(0, f"The paper's BLEU, {figures['paper_bleu']:.2f} on test, is {figures['paper_bleu_signature']}")
    return notes


# Beside the main score: key in metrics.json, heading and width of its column.
_COLUMNS = {
    "BLEU": {"chrf": ("chrF2", 8), "ter": ("TER", 8)},
    "F1": {"precision": ("precision", 11), "recall": ("recall", 8), "exact_match": ("exact", 8)},
}
_SHARES = {"copied": "are copies", "empty": "empty", "over_long": "over-long", "malformed": "had to be repaired into a tree"}


def main(path: Path = METRICS) -> int:
    """Print the table and return the exit code: 65 where no run has got as far as scores, or the last was of an earlier version."""
    try:
        print(_table_of(path))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _table_of(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"{path}: no such file", "Make it with: dvc repro")
    try:
        return table(read_json(path))
    except KeyError as missing:
        raise UserError(f"{path}: has no {missing.args[0]}, it is of an earlier version", "Make it anew with: dvc repro") from None


if __name__ == "__main__":
    raise SystemExit(main())
