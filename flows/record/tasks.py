"""The tasks, translation and parsing: their scores, the keys of these in scores.json, and the table of scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from flows.process.paths import REPORT, SCORES
from flows.record.documents import Needed, checked, unchecked
from transformer_core.config import TREES
from transformer_core.evaluation.moses_bleu import COUNT_TITLES
from transformer_core.evaluation.parsing import compare_parsers
from transformer_core.evaluation.significance import Comparison, compare_systems
from transformer_core.schema import Name, Quantity, Total


@dataclass(frozen=True, eq=False)
class Task:
    """A task.

    Attributes:
        score: name of the main score; in lower case its key in scores.json.
        scores: keys of the scores in scores.json, without those of evaluation/moses_bleu.py. Scores of test are at the top level, those of
            valid under `valid`, those of further test sets under `tests`.
        published: keys of the scores that stage publish adds to the training's run in MLflow.
        shares: keys of the shares of faulty outputs, for test only.
        of_sentences: name of the score of a single sentence.
        outputs: name of the outputs.
        columns: heading and width of the table's columns after the main score and its interval, by key.
        compare: comparison of two systems by the main score, given the outputs of both and the references.
    """

    score: str
    scores: tuple[str, ...]
    published: tuple[str, ...]
    shares: tuple[str, ...]
    of_sentences: str
    outputs: str
    columns: Mapping[str, tuple[str, int]]
    compare: Callable[[Sequence[str], Sequence[str], Sequence[str]], Comparison]

    @property
    def key(self) -> str:
        """The main score's key in scores.json."""
        return self.score.lower()

    def headline(self, scores: Mapping[str, Any]) -> str:
        """Return the main score of the test set: BLEU 86.41."""
        return f"{self.score} {scores[self.key]:.2f}"

    def name_of(self, scores: Mapping[str, Any]) -> str:
        """Return the main score as the names of MLflow's runs begin, which its tables cut off: 86.41 BLEU."""
        return f"{scores[self.key]:.2f} {self.score}"


def task_of(target: str) -> Task:
    """Return the task with this target: a language, or `tree`."""
    return PARSING if target == TREES else TRANSLATION


def task_scored(scores: Mapping[str, Any]) -> Task:
    """Return the task of the content of scores.json."""
    return PARSING if PARSING.key in scores else TRANSLATION


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
    numbers: dict[str, Any] = dict.fromkeys((task.key, f"{task.key}_low", f"{task.key}_high", *task.columns), Quantity)
    if "ter" in numbers:
        numbers["ter"] = (Quantity, 0)  # Absent if a line is too long for it.
    of_test: dict[str, Any] = dict.fromkeys(task.shares, Quantity)
    of_test |= {"corpus": Name, "lines": Total, "signature": str, "references_sha256": str}
    of_test |= dict.fromkeys(COUNT_TITLES, (Quantity, 0)) | {f"{name}_signature": (str, "") for name in COUNT_TITLES}
    valid = create_model("Valid", __base__=Needed, **numbers)
    further = create_model("Further", __base__=Needed, **numbers, lines=Total)
    return create_model("Scores", __base__=Needed, **numbers, **of_test, valid=valid, tests=(dict[str, further], {}))  # type: ignore[valid-type]


def score_table(scores: Mapping[str, Any]) -> str:
    """Return the content of scores.json as a table for a terminal of 80 columns."""
    task = task_scored(scores)
    heads = "".join(f"{name:>{width}}" for name, width in task.columns.values())
    rows = [f"{scores['corpus']:<30}{task.score:>8}{'95% interval':>15}{heads}"]
    tests = {"test": scores, **scores.get("tests", {})}
    splits = {"valid": scores["valid"], **tests}
    for split, of_split in splits.items():
        interval = f"{of_split[f'{task.key}_low']:.2f}-{of_split[f'{task.key}_high']:.2f}"
        others = "".join(
            f"{of_split[key]:>{width}.2f}" if key in of_split else f"{'-':>{width}}" for key, (_, width) in task.columns.items()
        )
        rows.append(f"{split:<30}{of_split[task.key]:>8.2f}{interval:>15}{others}")
    lines = ", ".join(f"{of_split['lines']:,} line{'s' * (of_split['lines'] != 1)} of {split}" for split, of_split in tests.items())
    rows.append(f"{task.score}: {scores['signature']}, {lines}")
    for name, title in COUNT_TITLES.items():
        if name in scores:
            found = ", ".join(f"{of_split[name]:.2f} on {split}" for split, of_split in splits.items() if name in of_split)
            rows.append(f"{title}: {found}, {scores.get(f'{name}_signature', 'of unknown signature')}")
    shares = [f"{scores[name]:.1f}% {_SHARES[name]}" for name in task.shares]
    return "\n".join([*rows, f"Outputs for test: {', '.join(shares)}", f"Report: {REPORT}"])


TRANSLATION = Task(
    score="BLEU",
    scores=("bleu", "bleu_low", "bleu_high", "chrf", "chrf_low", "chrf_high", "ter", "ter_low", "ter_high"),
    published=("bleu", "chrf", "ter"),
    shares=("copied", "empty", "over_long"),
    of_sentences="chrF2",
    outputs="translations",
    columns={"chrf": ("chrF2", 8), "ter": ("TER", 8)},
    compare=compare_systems,
)
PARSING = Task(
    score="F1",
    scores=("f1", "f1_low", "f1_high", "precision", "recall", "exact_match"),
    published=("f1", "precision", "recall", "exact_match"),
    shares=("malformed",),
    of_sentences="F1",
    outputs="trees",
    columns={"precision": ("precision", 11), "recall": ("recall", 8), "exact_match": ("exact", 8)},
    compare=compare_parsers,
)
_SHARES = {"copied": "copies", "empty": "empty", "over_long": "over-long", "malformed": "repaired into a tree"}
