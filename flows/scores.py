"""`python -m flows.scores`: the scores of the last run as a table (`dvc metrics show` has them too, in one line of 200 columns)."""

import sys
from pathlib import Path
from typing import Any

from flows.paths import METRICS, REPORT
from transformer_core.errors import UserError
from transformer_core.files import read_json


def table(figures: dict[str, Any]) -> str:
    """The content of results/metrics.json for a terminal of 80 columns."""
    corpus = f"{figures['corpus']} (generated text)" if figures["synthetic"] else figures["corpus"]
    rows = [f"{corpus:<40}{'BLEU':>8}{'chrF2':>8}{'TER':>8}"]
    for split, scores in (("valid", figures["valid"]), ("test", figures)):
        rows.append(f"{split:<40}{scores['bleu']:>8.2f}{scores['chrf']:>8.2f}{scores['ter']:>8.2f}")
    return "\n".join([*rows, f"BLEU is {figures['signature']}, test has {figures['lines']:,} lines", f"Report: {REPORT}"])


def main(path: Path = METRICS) -> int:
    """Print the table and return the exit code: 65 where no run has got as far as scores."""
    if not path.is_file():
        error = UserError(f"{path}: no such file", "Make it with: dvc repro")
        print(error, file=sys.stderr)
        return error.exit_code
    print(table(read_json(path)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
