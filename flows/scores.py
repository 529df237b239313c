"""`python -m flows.scores`: the scores of the last run as a table (`dvc metrics show` prints them in one line of 200 columns)."""

from flows.process.paths import METRICS, require
from flows.process.runner import reports_errors
from flows.record.tasks import score_table
from transformer_core.errors import UserError
from transformer_core.files import read_json


@reports_errors
def main() -> int:
    """Print the table. Raises `UserError` (65): no scores, or scores of an earlier version."""
    require(METRICS)
    try:
        print(score_table(read_json(METRICS)))
    except KeyError as missing:
        raise UserError(f"{METRICS}: has no {missing.args[0]}, it is of an earlier version", "Make it anew with: dvc repro") from None
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
