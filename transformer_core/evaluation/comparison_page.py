"""The comparison of two runs as one self-contained HTML file: curves of both trainings, significance, settings, sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformer_core.evaluation.comparison import FEW_LINES, SideBySide
from transformer_core.evaluation.pages import page
from transformer_core.evaluation.significance import SIGNIFICANT
from transformer_core.pictures.curves import Chart, line_chart

# Title, note, measure, and whether the scale is logarithmic, of each curve by its name in MLflow. One that neither run has is left out.
CURVES = {
    "valid/perplexity": ("Perplexity of valid", "Lower is better. Logarithmic scale.", "perplexity", True),
    "valid/bleu": ("BLEU while training", "Greedy outputs for a part of valid.", "BLEU", False),
    "valid/f1": ("F1 while training", "Greedy outputs for a part of valid.", "F1", False),
    "train/loss": ("Training loss", "Label-smoothed cross-entropy of a target token.", "nats a token", False),
}


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs.

    Attributes:
        name: its name in MLflow.
        run_id: its id in MLflow.
        settings: settings of training and evaluation.
        metrics: last value of each metric.
        curves: value by update, by the metric's name (`CURVES`).
    """

    name: str
    run_id: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    curves: Mapping[str, Mapping[int, float]]


def render_comparison(a: ComparedRun, b: ComparedRun, compared: SideBySide) -> str:
    """Return the page."""
    import pandas as pd

    def chart(name: str) -> Chart:
        title, note, measure, logarithmic = CURVES[name]
        both = {letter: pd.Series(run.curves.get(name, {}), dtype=float) for letter, run in (("A", a), ("B", b))}
        return line_chart(title, note, both, measure, logarithmic)

    return page(
        "compare.html",
        runs={"A": a, "B": b},
        compared=compared,
        charts=[chart(name) for name in CURVES if name in a.curves or name in b.curves],
        settings=_side_by_side(a.settings, b.settings, only_different=True),
        metrics=_side_by_side(a.metrics, b.metrics),
        significant=SIGNIFICANT,
        few=FEW_LINES,
    )


def _side_by_side(
    a: Mapping[str, object], b: Mapping[str, object], only_different: bool = False
) -> Sequence[tuple[str, object | None, object | None]]:
    """Return name and value in both runs, in order of name; None where a run has none."""
    rows = [(name, a.get(name), b.get(name)) for name in sorted(a.keys() | b.keys())]
    return [row for row in rows if not only_different or row[1] != row[2]]
