"""The tasks that a model can learn: translation, and those in packages of their own, which are loaded when they are asked for.

The target of a corpus selects the task: a language selects translation, `tree` constituency parsing. A task beside these needs a package
and a line in `_PACKAGES`; nothing of the core imports the package.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple

# sacreBLEU's tokenisers of translations.
Tokenizer = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200"]
TreeOrder = Literal["top-down", "in-order"]


class Task(NamedTuple):
    """What corpus, settings and training need to know of a task; how its outputs are scored, `evaluation.scoring.Scoring` says."""

    name: str
    score: str  # Name of its main score.
    max_extra: int  # Number of tokens by which an output in a validation may exceed its source, as in the paper.
    corpus_score: str  # `MODULE:FUNCTION` of the main score in percent, given outputs and references.
    scoring: str  # `MODULE:NAME` of its `Scoring`.
    # Yields the pairs, source and target, in a file of the task's own format.
    read_file: Callable[[Path], Iterator[tuple[bytes, bytes]]] | None = None
    # Returns the symbols that stand for the target of a pair, given the pair, the target's file and line, for errors, the order of a tree's
    # symbols, and whether they have the tags of words. None if models learn the target as it is.
    to_symbols: Callable[[tuple[str, str], Path, int, TreeOrder, bool], str] | None = None
    # `MODULE:NAME` of what makes a `StepModel` of one and its vocabulary that writes well-formed outputs alone.
    constraint: str | None = None
    cased_because: str = ""  # Why `bpe.lowercase` must be false; empty if it may be true.

    @property
    def key(self) -> str:
        """The main score's key in files and in MLflow, and its name in `train.best_by`."""
        return self.score.lower()

    def headline(self, scores: Mapping[str, Any]) -> str:
        """Return the main score of the test set: BLEU 86.41."""
        return f"{self.score} {scores[self.key]:.2f}"

    def run_name(self, scores: Mapping[str, Any]) -> str:
        """Return the main score as the names of MLflow's runs begin, which its tables cut off: 86.41 BLEU."""
        return f"{scores[self.key]:.2f} {self.score}"


TRANSLATION = Task(
    name="translation",
    score="BLEU",
    max_extra=50,  # Paper 6.1.
    corpus_score="transformer_core.evaluation.bleu:corpus_bleu",
    scoring="transformer_core.evaluation.metrics:SCORING",
)
TREES = "tree"
# The sides of a corpus of several directions, in place of two languages.
SOURCES, TARGETS = "sources", "targets"
# Where the task of each target that is no language is declared.
_PACKAGES = {TREES: "transformer_core.parsing.task:TASK"}


def task_of(target: str) -> Task:
    return resolve_name(_PACKAGES[target]) if target in _PACKAGES else TRANSLATION


def all_tasks() -> list[Task]:
    """Return all tasks, translation first."""
    return [TRANSLATION, *map(task_of, _PACKAGES)]


def is_language(target: str) -> bool:
    """Return whether a target, or a source, is text in a language."""
    return target not in _PACKAGES


def tag_of(target: str) -> str:
    """Return the symbol before each source sentence that is translated to a language, in a model of several directions."""
    return f"<2{target}>"


TAG = re.compile(tag_of(r"(\w[\w-]*)"))


def direction_of(manifest: Mapping[str, Any]) -> str:
    """Return the direction of a corpus as text: en → de, or of several: en-de, de-en."""
    several = [f"{source}-{target}" for source, target, _ in manifest["splits"]["test"].get("directions", [])]
    return ", ".join(several) or f"{manifest['source']} → {manifest['target']}"


def without_region(language: str) -> str:
    """Return the code of a language in small letters without region or script: en for en-GB."""
    return re.split("[-_]", language.lower())[0]
