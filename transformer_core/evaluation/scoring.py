"""How the outputs of a task are scored, compared and shown.

A task's module declares its scores once (`Task.scoring` names it). The keys of scores.json and of MLflow, the table of the terminal, the
report and the comparison of two systems follow from the declarations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from transformer_core.corpus.text import read_lines, unequal_sides, without_tags
from transformer_core.errors import UserError
from transformer_core.tasks import TAG, Task

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Score:
    """The declaration of a score of a set of outputs, or of a share of them, in percent."""

    key: str  # Its key in scores.json and MLflow; the ends of its 95% interval, if it has one, are KEY_low and KEY_high.
    name: str  # Its name in texts and over its column; of a share, what its outputs are.
    has_interval: bool = False
    lower_is_better: bool = False
    optional: bool = False  # Whether it is missing of some sets.
    sentence: str = ""  # The report's sentence on a score for comparison with published figures, which ends with these.
    tile: str = ""  # Name on a tile of the report, if such a score has one.

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key and those of its interval."""
        return (self.key, f"{self.key}_low", f"{self.key}_high") if self.has_interval else (self.key,)


@dataclass(frozen=True)
class Scores:
    """Scores of a set of outputs."""

    lines: int  # Number of outputs.
    values: Mapping[str, float]  # Scores and ends of intervals in percent, by key; those that were not computed are missing.
    signatures: Mapping[str, str]  # How a score was computed, by its key. Two scores are comparable only if their signatures are equal.
    shares: Mapping[str, float] = field(default_factory=dict)  # Shares in percent, by key.
    parts: Mapping[str, Any] = field(default_factory=dict)  # What the main score was computed from, by its key in scores.json.


@dataclass(frozen=True)
class Comparison:
    """A score of two systems on the same sentences."""

    score: Score
    baseline: float  # Score of the first system, in percent.
    candidate: float  # Score of the second system, in percent.
    p_value: float  # Probability of such a difference by chance; 1 if there is no difference.
    signature: str  # Record of how the scores and the p-value were computed.
    low: float  # Lower end of the 95% interval of the difference; `high` is the upper end.
    high: float

    @property
    def difference(self) -> float:
        """Candidate minus baseline."""
        return self.candidate - self.baseline

    @property
    def significant(self) -> bool:
        """True if the p-value is below `SIGNIFICANT`."""
        return self.p_value < SIGNIFICANT


@dataclass(frozen=True)
class Scoring:
    """How the outputs of a task are scored, compared and shown. Functions get outputs before references."""

    task: Task
    scores: tuple[Score, ...]  # The scores, the main one first; stage publish adds them to the training's run in MLflow.
    shares: tuple[Score, ...]  # Shares of outputs that are wrong whatever the reference.
    # Returns the scores of each set, given outputs and references by set, the sources of test, and the manifest; `test` has shares,
    # too. Raises `ValueError`: a set is empty, or its sides differ in length.
    score_sets: Callable[[Mapping[str, tuple[Sequence[str], Sequence[str]]], Sequence[str], Mapping[str, Any]], dict[str, Scores]]
    # Returns the main score of some outputs and references, given all references.
    main_score: Callable[[Sequence[str], Sequence[str], Sequence[str]], float]
    # Returns the score of each sentence, in percent; `of_sentences` is its name.
    sentence_scores: Callable[[Sequence[str], Sequence[str]], list[float]]
    of_sentences: str
    is_right: Callable[[str, str, float], bool]  # Returns whether an output is exactly right, given its reference and its score.
    # Yields the comparison of two systems' outputs by each score, the main one first. Raises `ValueError` as `score_sets`.
    comparisons: Callable[[Sequence[str], Sequence[str], Sequence[str]], Iterator[Comparison]]
    # Yields warnings about the references in a file, given whether tokenised text is allowed. Raises `UserError` (65): a line cannot
    # be scored.
    check_references: Callable[[Path, Sequence[str], bool], Iterator[str]]
    outputs: str
    purpose: str  # What a model does, with {source} and {target} for the languages.
    # Scores for comparison with published figures, which have a signature in scores.json. A corpus asks for one by its key.
    published: tuple[Score, ...] = ()
    package: str = "transformer_core.evaluation"  # The package whose folder `templates` has the report's template, NAME OF THE TASK.html.
    marks_words: bool = True  # Whether pages mark the words in which an output and its reference differ.
    # Whether `score_sets`, `main_score` and `comparisons` take a `tokenizer` of sacreBLEU; "": the references decide.
    has_tokens: bool = False
    as_scored: Callable[[str], str] = str  # Returns an output of any program in the form that is scored.
    # Returns an output in the form that a person compares with the reference.
    as_shown: Callable[[str, str], str] = lambda output, _: output


def scoring_of(task: Task, tokenizer: str = "") -> Scoring:
    """Return the scoring of a task, for translations with a tokeniser of sacreBLEU if one is named."""
    found: Scoring = resolve_name(task.scoring)
    with_it: dict[str, Any] = {
        key: partial(getattr(found, key), tokenizer=tokenizer) for key in ("score_sets", "main_score", "comparisons")
    }
    return replace(found, **with_it) if tokenizer and found.has_tokens else found


def untagged(sources: Iterable[str]) -> list[str]:
    """Return source sentences without the tags of a model of several directions, which are no words of theirs."""
    return [without_tags(source, TAG.fullmatch) for source in sources]


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
