"""The main score of a task: what the pages, tables and decisions about a run call it, and where metrics.json has it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_core.config import TREES
from transformer_core.evaluation.parsing import compare_parsers
from transformer_core.evaluation.significance import Comparison, compare_systems


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        score: the name of its main score; in small letters its key in metrics.json.
        scores: the keys of its scores in metrics.json, of test at the top and of valid under `valid`.
        published: those of them that MLflow shows on the page of the training.
        shares: the keys there of shares of outputs that went wrong, of test alone.
        outputs: what a model writes.
        compare: two systems' outputs and the references, by the main score.
    """

    score: str
    scores: tuple[str, ...]
    published: tuple[str, ...]
    shares: tuple[str, ...]
    outputs: str
    compare: Callable[[Sequence[str], Sequence[str], Sequence[str]], Comparison]

    @property
    def key(self) -> str:
        """The main score's key in metrics.json."""
        return self.score.lower()

    def headline(self, figures: Mapping[str, Any]) -> str:
        """The main score of the test set: BLEU 86.41."""
        return f"{self.score} {figures[self.key]:.2f}"


def task_of(target: str) -> Task:
    """The task whose target this is: a language, or `tree`."""
    return PARSING if target == TREES else TRANSLATION


def task_scored(figures: Mapping[str, Any]) -> Task:
    """The task that the content of metrics.json is of."""
    return PARSING if PARSING.key in figures else TRANSLATION


TRANSLATION = Task(
    score="BLEU",
    scores=("bleu", "bleu_low", "bleu_high", "chrf", "ter", "paper_bleu"),
    published=("bleu", "chrf", "ter"),
    shares=("copied", "empty", "over_long"),
    outputs="translations",
    compare=compare_systems,
)
PARSING = Task(
    score="F1",
    scores=("f1", "f1_low", "f1_high", "precision", "recall", "exact_match"),
    published=("f1", "precision", "recall", "exact_match"),
    shares=("malformed",),
    outputs="trees",
    compare=compare_parsers,
)
