"""How the outputs of a task are scored, compared and shown.

A task's module declares its scores once (`Task.scoring` names it). The keys of scores.json and of MLflow, the table of the terminal, the
report and the comparison of two systems follow from the declarations.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformer_core.corpus.text import read_lines, unequal_sides
from transformer_core.errors import UserError
from transformer_core.tasks import Task, all_tasks, load, task_of

if TYPE_CHECKING:
    from transformer_core.evaluation.report import Report

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Score:
    """The declaration of a score of a set of outputs, in percent; stage publish adds it to the training's run in MLflow.

    Attributes:
        key: its key in scores.json and MLflow; the ends of its 95% interval, if it has one, are KEY_low and KEY_high.
        name: its name in texts and over its column.
        has_interval: whether it has an interval.
        lower_is_better: whether a lower score is better.
        optional: whether it is missing of some sets.
    """

    key: str
    name: str
    has_interval: bool = True
    lower_is_better: bool = False
    optional: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key and those of its interval."""
        return (self.key, f"{self.key}_low", f"{self.key}_high") if self.has_interval else (self.key,)


@dataclass(frozen=True)
class PublishedScore:
    """The declaration of a score for comparison with published figures, without an interval, with a signature in scores.json.

    Attributes:
        key: its key in scores.json and MLflow; a corpus asks for it by this name, with hyphens.
        title: its name in texts.
        sentence: the report's sentence on it, which ends with the figures.
        tile: its name on a tile of the report; empty for none.
    """

    key: str
    title: str
    sentence: str
    tile: str = ""


@dataclass(frozen=True)
class Share:
    """The declaration of a share of the outputs, in percent, that are wrong whatever the reference.

    Attributes:
        key: its key in scores.json and MLflow.
        words: what these outputs are: "0.2% WORDS".
    """

    key: str
    words: str


@dataclass(frozen=True)
class Scores:
    """Scores of a set of outputs.

    Attributes:
        lines: number of outputs.
        values: scores, ends of intervals and published scores in percent, by key; those that were not computed are missing.
        signatures: how a score was computed, by its key. Two scores are comparable only if their signatures are equal.
        shares: the shares in percent, by key.
        parts: what the main score was computed from, by its key in scores.json.
    """

    lines: int
    values: Mapping[str, float]
    signatures: Mapping[str, str]
    shares: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupScore:
    """Main score in percent over the sentences of a test set that share a label, and their number."""

    label: str
    size: int
    score: float


@dataclass(frozen=True)
class Comparison:
    """A score of two systems on the same sentences.

    Attributes:
        baseline: score of the first system, in percent.
        candidate: score of the second system, in percent.
        p_value: probability of such a difference by chance; 1 if there is no difference.
        signature: record of how the scores and the p-value were computed.
    """

    score: Score
    baseline: float
    candidate: float
    p_value: float
    signature: str

    @property
    def metric(self) -> str:
        """The score's name."""
        return self.score.name

    @property
    def difference(self) -> float:
        """Candidate minus baseline."""
        return self.candidate - self.baseline

    @property
    def significant(self) -> bool:
        """True if the p-value is below `SIGNIFICANT`."""
        return self.p_value < SIGNIFICANT

    @property
    def candidate_is_better(self) -> bool:
        """True if the candidate has the better score."""
        return (self.difference > 0) != self.score.lower_is_better


class Scoring(ABC):
    """How the outputs of a task are scored, compared and shown.

    Attributes:
        scores: the scores, the main one first.
        published: the scores for comparison with published figures.
        shares: the shares of wrong outputs.
        of_sentences: name of a single sentence's score.
        outputs: name of the outputs.
        purpose: what a model does, with {source} and {target} for the languages.
        test: how a p-value is computed, in words.
        package: the package whose folder `templates` has the report's template, NAME OF THE TASK.html.
        marks_words: whether pages mark the words in which an output and its reference differ.
    """

    task: ClassVar[Task]
    scores: ClassVar[tuple[Score, ...]]
    published: ClassVar[tuple[PublishedScore, ...]] = ()
    shares: ClassVar[tuple[Share, ...]]
    of_sentences: ClassVar[str]
    outputs: ClassVar[str]
    purpose: ClassVar[str]
    test: ClassVar[str]
    package: ClassVar[str] = "transformer_core.evaluation"
    marks_words: ClassVar[bool] = True

    @abstractmethod
    def check_references(self, path: Path, references: Sequence[str], allow_tokenised: bool) -> Iterator[str]:
        """Yield warnings about references. Raises `UserError` (65): a line of the file at `path` cannot be scored."""

    @abstractmethod
    def score_sets(
        self, sets: Mapping[str, tuple[Sequence[str], Sequence[str]]], sources: Sequence[str], manifest: Mapping[str, Any]
    ) -> dict[str, Scores]:
        """Return the scores of each set, given its outputs and references; `test` has shares, too.

        `sources` are those of test. Raises `ValueError`: a set is empty, or its sides differ in length.
        """

    @abstractmethod
    def sentence_scores(self, outputs: Sequence[str], references: Sequence[str]) -> list[float]:
        """Return the score of each sentence, in percent."""

    @abstractmethod
    def exactly_right(self, outputs: Sequence[str], references: Sequence[str]) -> list[bool]:
        """Return whether each output is exactly right."""

    @abstractmethod
    def by_group(self, groups: Mapping[str, Sequence[int]], outputs: Sequence[str], references: Sequence[str]) -> list[GroupScore]:
        """Return the main score over groups of sentences; `groups` has the indices of sentences by label."""

    @abstractmethod
    def comparisons(self, baseline: Sequence[str], candidate: Sequence[str], references: Sequence[str]) -> Iterator[Comparison]:
        """Yield the comparison of two systems by each score, the main one first. Raises `ValueError`: as `score_sets`."""

    def as_scored(self, output: str) -> str:
        """Return an output of any program in the form that is scored."""
        return output

    def as_shown(self, output: str, reference: str) -> str:
        """Return an output in the form that a person compares with the reference."""
        _ = reference
        return output

    def report_content(self, report: "Report") -> dict[str, Any]:
        """Return what the report's template needs beside the report."""
        _ = report
        return {}


def read_aligned(*paths: Path) -> list[list[str]]:
    """Read files that correspond line by line; nothing is stripped, and lines end only at "\\n".

    Raises `UserError`: a file cannot be read, is empty, or has another number of lines than the first.
    """
    files = [list(read_lines(path)) for path in paths]
    for path, lines in zip(paths, files, strict=True):
        if len(lines) != len(files[0]):
            raise unequal_sides(path, paths[0], len(lines), len(files[0]))
        if not lines:
            raise UserError(f"{path}: holds no line, so there is nothing to score")
    return files


def scoring_of(target: str) -> Scoring:
    """Return the scoring of the task with this target."""
    return loaded(task_of(target))


def loaded(task: Task) -> Scoring:
    """Return the scoring of a task."""
    found: Scoring = load(task.scoring)
    return found


def all_scorings() -> Iterable[Scoring]:
    """Return the scorings of all tasks."""
    return map(loaded, all_tasks())
