"""The page of `python -m flows.compare --page`: many runs beside a base, in one HTML file that needs no server."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from transformer_core.corpus.text import unit_of_length
from transformer_core.evaluation.comparison import SideBySide, side_by_side
from transformer_core.evaluation.examples import GroupScore, scores_by_length
from transformer_core.evaluation.pages import page
from transformer_core.evaluation.scoring import Comparison, Scoring
from transformer_core.pictures.curves import line_chart

if TYPE_CHECKING:
    import pandas as pd

PACKAGE = "flows"
# Metrics of a training in MLflow: title and note of their chart, measure, and whether it is logarithmic.
SPEED = "train/tokens_per_second"
SCORE = "valid/score"  # Stands for the main score of the task.
CURVES = {
    "train/loss": ("Training loss", "Label-smoothed cross-entropy of a target token.", "nats a token", False),
    "valid/perplexity": ("Perplexity of valid", "Lower is better. Logarithmic scale.", "perplexity", True),
    SCORE: ("Score while training", "Greedy outputs for a part of valid.", "score", False),
    SPEED: ("Speed", "Target tokens a second, all devices together.", "tokens a second", False),
}


class Compared(NamedTuple):
    """A run on a test set: its outputs' main score with interval in percent, NaN if unknown, and its comparison with the base."""

    number: int
    low: float
    high: float
    comparison: Comparison
    groups: Sequence[GroupScore]
    sentences: SideBySide | None


class TestSet(NamedTuple):
    """A test set of the base, and the runs that have it; `unit` is that of the groups by length."""

    name: str
    scoring: Scoring
    lines: int
    unit: str
    runs: Sequence[Compared]


class Run(NamedTuple):
    """A run on the page. Its number stands for it in tables and curves; the first one is the base."""

    number: int
    name: str
    link: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]  # Of its evaluation, as MLflow has them.
    curves: "Mapping[str, pd.Series[float]]"  # Values by update, by the names of `CURVES`.
    seconds: float | None  # Duration of its training; None if MLflow does not have it.

    @property
    def speed(self) -> float | None:
        """Target tokens a second, the median over the training."""
        return float(self.curves[SPEED].median()) if SPEED in self.curves else None


class Unfinished(NamedTuple):
    """Trainings that failed or were stopped with one exit code, empty if none was recorded: their number, and the name of the latest."""

    code: str
    trainings: int
    latest: str


def compared(
    name: str, scoring: Scoring, texts: Sequence[tuple[Run, str, Sequence[str]]], right: Sequence[str], source: Sequence[str]
) -> TestSet:
    """Compare outputs for a test set with those of the first run, the base; `texts` has each run, its name for the set, and its outputs."""
    base, rows = texts[0][2], []
    for run, split, outputs in texts:
        key = scoring.task.key if split == "test" else f"{split}/{scoring.task.key}"
        low, high = (run.metrics.get(f"{key}_{end}", float("nan")) for end in ("low", "high"))
        sentences = side_by_side(scoring, base, outputs, right, source) if run.number > 1 else None
        comparison = sentences.scores[0] if sentences else next(scoring.comparisons(base, outputs, right))
        rows.append(Compared(run.number, low, high, comparison, scores_by_length(scoring, source, outputs, right), sentences))
    return TestSet(name, scoring, len(right), unit_of_length(source), rows)


def render(runs: Sequence[Run], tests: Sequence[TestSet], unfinished: Sequence[Unfinished], price_per_hour: float | None) -> str:
    """Return the page. A content security policy lets it run its own script alone, which sorts tables, and load nothing."""
    names = sorted({key for run in runs for key in run.settings})
    different = [key for key in names if len({run.settings.get(key) for run in runs}) > 1]
    drawn = {name: {str(run.number): run.curves[name] for run in runs if name in run.curves} for name in CURVES}
    charts = [line_chart(title, note, drawn[name], measure, log) for name, (title, note, measure, log) in CURVES.items()]
    script = resources.files(PACKAGE).joinpath("templates/sort.js").read_text(encoding="utf-8")
    return page(
        "compare.html",
        PACKAGE,
        runs=runs,
        tests=tests,
        different=different,
        charts=charts,
        unfinished=unfinished,
        price_per_hour=price_per_hour,
        script=script,
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
    )
