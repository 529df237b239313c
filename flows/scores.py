"""`python -m flows.scores`: the scores of the last run as a table (`dvc metrics show` prints them in one line of 200 columns)."""

from collections.abc import Sequence

from flows.process.runner import reports_errors
from flows.record.tasks import read_scores, score_table
from transformer_core.cli.arguments import Parser


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scores of the last run. The exit code is 65 if no run has been scored, or if the file of the scores is damaged."""
    Parser(prog="python -m flows.scores", description=main.__doc__).parse_args(arguments)
    print(score_table(read_scores()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
