"""`python -m flows.scores`: the scores of the last run as a table (`dvc metrics show` prints them in one line of 200 columns)."""

from collections.abc import Iterator, Sequence
from itertools import islice

from flows.process import paths
from flows.process.runner import reports_errors
from flows.record.documents import read_output, read_scores, score_table, task_scored
from transformer_core.cli.arguments import Parser
from transformer_core.corpus.text import normalise, read_lines
from transformer_core.evaluation.scoring import scoring_of


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the scores of the last run, and of a translation its first sentences of the test set.

    The exit code is 65 if no run has been scored, or if a file of it is missing or damaged.
    """
    Parser(prog="python -m flows.scores", description="Print the scores of the last run.").parse_args(arguments)
    scores = read_scores()
    print(score_table(scores))
    if scoring_of(task_scored(scores)).marks_words:  # Words alone show how an output and its reference differ.
        print(*examples(), sep="\n")
    return 0


def examples() -> Iterator[str]:
    """Yield the first sentences of the test set, each with its translation and reference."""
    manifest = read_output(paths.MANIFEST)
    files = {
        "source": paths.RAW / f"test.{manifest['source']}",
        "translation": paths.DECODED / paths.HYPOTHESES,
        "reference": paths.RAW / f"test.{manifest['target']}",
    }
    paths.require(*files.values())
    for lines in islice(zip(*map(read_lines, files.values()), strict=False), 3):
        yield ""
        yield from (f"{name:<13}{normalise(line)}" for name, line in zip(files, lines, strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
