"""Line charts: measures of a training over its updates, and the sentence lengths of a corpus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_core.evaluation.figures import FIRST, MUTED, RULE, SECOND, as_svg, blank, gid

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Pixels: size of the figure; left, bottom, width and height of the chart. They fit a phone's page, so text is not scaled there.
_WIDTH, _HEIGHT, _CHART = 360, 238, (46, 36, 304, 178)
_TEXT, _EDGE, _STEPS = 11, 4, (1, 2, 2.5, 5, 10)
SHARE_SHOWN = 0.995
MOST_PLACES, MOST_DOTS = 240, 40


class Chart(NamedTuple):
    """A drawn chart; `legend` has the name and a summary of each line, in order. Without values to draw, `legend` and `svg` are empty."""

    title: str
    note: str
    legend: list[str]
    svg: str


def training_charts(updates: Sequence[Mapping[str, float]], validation: Sequence[Mapping[str, float]], score: str) -> list[Chart]:
    """Draw perplexity, the score of outputs (named `score`), loss, learning rate, gradient norm and speed over the updates."""
    import pandas as pd

    training, validated = (pd.DataFrame(rows).set_index("update") if len(rows) else pd.DataFrame() for rows in (updates, validation))

    def column(rows: pd.DataFrame, name: str) -> pd.Series[float]:
        return rows[name] if len(rows) else pd.Series(dtype=float)

    return [
        line_chart(
            "Perplexity",
            "exp of the mean negative log-likelihood of a subword; lower is better. Logarithmic scale.",
            {"training": column(training, "perplexity"), "validation": column(validated, "perplexity")},
            measure="perplexity",
            logarithmic=True,
        ),
        line_chart(
            f"{score} while training",
            "Greedy outputs for a part of valid: lower than a beam's of the averaged model.",
            {"validation": column(validated, "score")},
            measure=score,
        ),
        line_chart("Training loss", "Label-smoothed cross-entropy of a target token.", {"loss": column(training, "loss")}, "nats a token"),
        line_chart("Learning rate", "Rises during the warmup, then falls.", {"learning rate": column(training, "learning_rate")}, "rate"),
        line_chart(
            "Gradient",
            "Its mean norm since the last record. A spike marks unstable updates.",
            {"norm": column(training, "gradient_norm")},
            "norm",
        ),
        line_chart(
            "Speed", "Target tokens a second, all devices together.", {"tokens/s": column(training, "tokens_per_second")}, "tokens a second"
        ),
    ]


def length_charts(cleaning: Mapping[str, Any]) -> list[Chart]:
    """Draw the number of training sentences by number of words, before and after cleaning, for each language."""
    import pandas as pd

    charts = []
    for language, counts in cleaning["lengths_in"].items():
        before, after = pd.Series(counts, dtype=float), pd.Series(cleaning["lengths_out"][language], dtype=float)
        shown = int((before.cumsum() < SHARE_SHOWN * before.sum()).sum()) + 1
        note = f"Training sentences by their words; the longest {100 - 100 * SHARE_SHOWN:.1f}% are not drawn."
        series = {"before cleaning": before[:shown], "after": after[:shown]}
        charts.append(line_chart(f"Sentence lengths, {language}", note, series, "sentences", unit="words"))
    return charts


def line_chart(
    title: str, note: str, series: Mapping[str, pd.Series[float]], measure: str = "", logarithmic: bool = False, unit: str = "update"
) -> Chart:
    """Draw at most two series of values, labelled by `measure`, over updates or words.

    A linear axis starts at 0, or below at the smallest value; a logarithmic one starts at the smallest value. Values that cannot be drawn
    (not finite, or not above 0 on a logarithmic scale) are left out.
    """
    import pandas as pd

    drawable = {name: values[np.isfinite(values) & ((values > 0) | (not logarithmic))] for name, values in series.items()}
    drawable = {name: values for name, values in drawable.items() if len(values)}
    if not drawable:
        return Chart(title, note, [], "")
    figure = blank(_WIDTH, _HEIGHT)
    left, bottom, width, height = _CHART
    axes = figure.add_axes((left / _WIDTH, bottom / _HEIGHT, width / _WIDTH, height / _HEIGHT), frameon=False)
    _set_axes(axes, pd.concat(list(drawable.values())), logarithmic, unit)
    figure.text(_EDGE / _WIDTH, 1 - _TEXT / _HEIGHT, measure, fontsize=_TEXT, color=MUTED)
    for number, (values, colour) in enumerate(zip(drawable.values(), (FIRST, SECOND), strict=False)):
        broad = unit == "words" and number == 0  # The curves before and after cleaning partly coincide.
        size = math.ceil(len(values) / MOST_PLACES)
        places = pd.DataFrame({"x": values.index, "y": values.to_numpy()}).groupby(np.arange(len(values)) // size).mean()
        axes.plot(places.x, places.y, color=colour, linewidth=7 if broad else 2, alpha=0.3 if broad else 1, solid_capstyle="round")
        for x, y in zip(values.index.tolist(), values.tolist(), strict=True) if len(values) <= MOST_DOTS else ():
            dot = gid(f"dot {unit}", f"{unit} {x:,.0f}: {axis_label(y)}")
            axes.plot([x, x], [y, y], color=colour, linewidth=5, solid_capstyle="round", gid=dot)
    legend = [
        f"{name}, at the end {axis_label(values.iloc[-1])}" if unit == "update" else f"{name}, most often {values.idxmax():,.0f} words"
        for name, values in drawable.items()
    ]
    by = f"{title} by {unit}"
    return Chart(title, note, legend, as_svg(figure, by, title=f"{by}: {'; '.join(legend)}"))


def axis_label(value: float) -> str:
    """Format a number for an axis: 0.0007, 250, 1,200, 40k, 1.5M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"


def _set_axes(axes: Axes, values: pd.Series[float], logarithmic: bool, unit: str) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = (float(values.min()) if logarithmic else min(0.0, values.min())), float(values.max())
    if low == high:
        low, high = (low / 2, high * 2) if logarithmic else (low, low + max(1.0, abs(low)))
    axes.set_xlim(0, values.index.max() or 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    if logarithmic:
        decades = math.log10(high / low)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades <= 2 else (1, 3) if decades <= 3.5 else (1,), numticks=8))
    axes.set_ylim(low, high)
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: axis_label(value))
    axes.tick_params(length=0, labelsize=_TEXT, labelcolor=MUTED, pad=5)
    axes.grid(axis="y", color=RULE, linewidth=1)
    axes.axhline(low, color=RULE, linewidth=1)
    axes.set_axisbelow(True)
    axes.set_xlabel(unit, fontsize=_TEXT, color=MUTED, labelpad=3)
