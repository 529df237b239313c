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
    rows = [f"{corpus:<36}{'BLEU':>8}{'95% interval':>15}{'chrF2':>8}{'TER':>8}"]
    for split, scores in (("valid", figures["valid"]), ("test", figures)):
        interval = f"{scores['bleu_low']:.2f}-{scores['bleu_high']:.2f}"
        rows.append(f"{split:<36}{scores['bleu']:>8.2f}{interval:>15}{scores['chrf']:>8.2f}{scores['ter']:>8.2f}")
    notes = [
        f"BLEU is {figures['signature']}, test has {figures['lines']:,} lines",
        f"The paper's BLEU, {figures['paper_bleu']:.2f} on test, is {figures['paper_bleu_signature']}",
        f"Of the test outputs {figures['copied']:.1f}% are copies, {figures['empty']:.1f}% empty, {figures['over_long']:.1f}% over-long",
        f"Report: {REPORT}",
    ]
    return "\n".join([*rows, *notes])


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
