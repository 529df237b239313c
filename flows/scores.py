"""`python -m flows.scores`: the scores of the last run as a table (`dvc metrics show` prints them in one line of 200 columns)."""

import argparse
from collections.abc import Sequence

from flows.process.paths import SCORES, require
from flows.process.runner import reports_errors
from flows.record.tasks import score_table
from transformer_core.errors import UserError
from transformer_core.files import read_json


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scores of the last run. The exit code is 65 if no run has been scored, or the last one by an earlier version."""
    argparse.ArgumentParser(prog="python -m flows.scores", description=main.__doc__).parse_args(arguments)
    require(SCORES)
    try:
        print(score_table(read_json(SCORES)))
    except KeyError as missing:
        raise UserError(f"{SCORES}: has no {missing.args[0]}, it is of an earlier version", "Make it anew with: dvc repro") from None
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise UserError(f"{SCORES}: holds other values than scores", "Make it anew with: dvc repro --force evaluate") from None
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
