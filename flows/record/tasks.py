"""Reading of scores.json, and the table of scores; the keys follow from the declarations of the task (`Scoring`)."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from flows.process.paths import REPORT, SCORES
from flows.record.documents import Needed, checked, unchecked
from transformer_core.evaluation.scoring import scoring_of
from transformer_core.schema import Name, Quantity, Total
from transformer_core.tasks import TRANSLATION, Task, all_tasks

# The table has 80 columns.
_FIRST, _WIDTH, _INTERVAL = 30, 8, 15


def task_scored(scores: Mapping[str, Any]) -> Task:
    """Return the task of the content of scores.json."""
    return next((task for task in all_tasks() if task.key in scores), TRANSLATION)


def read_scores(task: Task | None = None, root: Path = Path()) -> dict[str, Any]:
    """Return scores.json of the repository at `root`, of this task or else of the one whose main score it has.

    Raises `UserError` (65): it is missing or not JSON, or a key that a reader needs is missing or wrong.
    """
    scores = unchecked(SCORES, root)
    if task is None:
        task = task_scored(scores if isinstance(scores, dict) else {})
    return checked(_schema(task), scores, SCORES, root)


@cache
def _schema(task: Task) -> type[BaseModel]:
    """Return the schema of what readers need of scores.json. It is made once: Python never frees a class that pydantic has made."""
    scoring = scoring_of(task)
    main, *others = scoring.scores
    numbers: dict[str, Any] = dict.fromkeys(main.keys, Quantity)
    numbers |= {score.key: (Quantity, 0) if score.optional else Quantity for score in others}
    of_test: dict[str, Any] = dict.fromkeys((share.key for share in scoring.shares), Quantity)
    of_test |= {"corpus": Name, "lines": Total, "signature": str, "references_sha256": str}
    for score in scoring.published:
        of_test |= {score.key: (Quantity, 0), f"{score.key}_signature": (str, "")}
    valid = create_model("Valid", __base__=Needed, **numbers)
    further = create_model("Further", __base__=Needed, **numbers, lines=Total)
    return create_model("Scores", __base__=Needed, **numbers, **of_test, valid=valid, tests=(dict[str, further], {}))  # type: ignore[valid-type]


def score_table(scores: Mapping[str, Any]) -> str:
    """Return the content of scores.json as a table for a terminal of 80 columns."""
    scoring = scoring_of(task_scored(scores))
    main, *others = scoring.scores
    widths = {score: max(_WIDTH, len(score.name) + 2) for score in others}
    heads = "".join(f"{score.name:>{width}}" for score, width in widths.items())
    rows = [f"{scores['corpus']:<{_FIRST}}{main.name:>{_WIDTH}}{'95% interval':>{_INTERVAL}}{heads}"]
    tests = {"test": scores, **scores.get("tests", {})}
    splits = {"valid": scores["valid"], **tests}
    for split, of_split in splits.items():
        interval = f"{of_split[f'{main.key}_low']:.2f}-{of_split[f'{main.key}_high']:.2f}"
        cells = (f"{f'{of_split[score.key]:.2f}' if score.key in of_split else '-':>{width}}" for score, width in widths.items())
        rows.append(f"{split:<{_FIRST}}{of_split[main.key]:>{_WIDTH}.2f}{interval:>{_INTERVAL}}{''.join(cells)}")
    lines = ", ".join(f"{of_split['lines']:,} line{'s' * (of_split['lines'] != 1)} of {split}" for split, of_split in tests.items())
    rows.append(f"{main.name}: {scores['signature']}, {lines}")
    for score in scoring.published:
        if score.key in scores:
            found = ", ".join(f"{of_split[score.key]:.2f} on {split}" for split, of_split in splits.items() if score.key in of_split)
            rows.append(f"{score.name}: {found}, {scores.get(f'{score.key}_signature', 'of unknown signature')}")
    shares = ", ".join(f"{scores[share.key]:.1f}% {share.name}" for share in scoring.shares)
    return "\n".join([*rows, f"Outputs for test: {shares}", f"Report: {REPORT}"])
