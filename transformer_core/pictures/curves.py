"""Curves: measures of a training over its updates, and the sentence lengths of a corpus."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_core.pictures.drawing import FIRST, MUTED, RULE, SECOND, as_image, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT, _ROW, _TEXT = 400, 245, 17, 8  # Pixels, of a row of the legend as well; points.
_COLOURS = (FIRST, SECOND, "#1a7f37", "#8250df", "#9a6700", "#0f7b8a", "#bf3989", "#57606a")
SHARE_SHOWN = 0.995
MOST_PLACES = 240  # Points of a curve; of more the mean of neighbours is drawn.
# Title, note and measure of the charts of one column of updates.csv.
BY_UPDATE = {
    "loss": ("Training loss", "Label-smoothed cross-entropy of a target token.", "nats a token"),
    "learning_rate": ("Learning rate", "Rises during the warmup, then falls.", "rate"),
    "gradient_norm": ("Gradient", "Its mean norm since the last record. A spike marks unstable updates.", "norm"),
    "tokens_per_second": ("Speed", "Target tokens a second, all devices together.", "tokens a second"),
}


class Chart(NamedTuple):
    """A drawn chart as an HTML element, which is empty without values to draw."""

    title: str
    note: str
    image: str


def training_charts(updates: Sequence[Mapping[str, float]], validation: Sequence[Mapping[str, float]], score: str) -> list[Chart]:
    """Draw perplexity, the score of outputs (named `score`), gain by the source, loss, learning rate, gradient norm and speed by update."""
    import pandas as pd

    def column(rows: Sequence[Mapping[str, float]], name: str) -> "pd.Series[float]":
        return pd.Series([row.get(name, math.nan) for row in rows], [row["update"] for row in rows], dtype=float)

    both = {"training": column(updates, "perplexity"), "validation": column(validation, "perplexity")}
    of_subword = "exp of the mean negative log-likelihood of a subword; lower is better. Logarithmic scale."
    of_part = "Greedy outputs for a part of valid: lower than a beam's of the averaged model."
    of_source = "Loss of valid with the sources of other pairs, less that with its own; near 0 the model does not read its source."
    return [
        line_chart("Perplexity", of_subword, both, "perplexity", logarithmic=True),
        line_chart(f"{score} while training", of_part, {"validation": column(validation, "score")}, score),
        line_chart("What the source gives", of_source, {"validation": column(validation, "source_gain")}, "nats a token"),
        *(line_chart(title, note, {measure: column(updates, key)}, measure) for key, (title, note, measure) in BY_UPDATE.items()),
    ]


def length_charts(cleaning: Mapping[str, Any], units: Mapping[str, str]) -> list[Chart]:
    """Draw the number of training sentences by length, before and after cleaning, for each language in its unit: words or characters."""
    import pandas as pd

    charts = []
    for language, counts in cleaning["lengths_in"].items():
        before, after = pd.Series(counts, dtype=float), pd.Series(cleaning["lengths_out"][language], dtype=float)
        shown = int((before.cumsum() < SHARE_SHOWN * before.sum()).sum()) + 1
        unit = units.get(language, "words")
        note = f"Training sentences by their {unit}; the longest {100 - 100 * SHARE_SHOWN:.1f}% are not drawn."
        series = {"before cleaning": before[:shown], "after": after[:shown]}
        charts.append(line_chart(f"Sentence lengths, {language}", note, series, "sentences", unit=unit))
    return charts


def line_chart(
    title: str, note: str, series: "Mapping[str, pd.Series[float]]", measure: str = "", logarithmic: bool = False, unit: str = "update"
) -> Chart:
    """Return the chart of `line_figure` with its title and a note."""
    figure = line_figure(series, measure, logarithmic, unit)
    return Chart(title, note, "" if figure is None else as_image(figure, f"{title} by {unit}"))


def line_figure(series: "Mapping[str, pd.Series[float]]", measure: str, logarithmic: bool = False, unit: str = "update") -> "Figure | None":
    """Draw series of values, labelled by `measure`, over places that `unit` names; None without a value to draw.

    Each has a colour and dashes of its own; the legend is below the axes. A linear axis starts at 0, or below at the smallest value; a
    logarithmic one starts at the smallest value. Values that cannot be drawn (not finite, or not above 0 on a logarithmic scale) are left
    out.
    """
    import pandas as pd
    from matplotlib.ticker import LogFormatter

    drawable = {name: values[np.isfinite(values) & ((values > 0) | (not logarithmic))] for name, values in series.items()}
    drawable = {name: values for name, values in drawable.items() if len(values)}
    if not drawable:
        return None
    columns = 1 if len(drawable) <= 2 else 2
    figure = new_figure(_WIDTH, _HEIGHT + _ROW * math.ceil(len(drawable) / columns))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    # Solid lines in all colours, then dashes, then dashes with one dot more in each turn.
    patterns = ["-", *((0, (6, 2, *(1, 2) * dots)) for dots in range(len(drawable) // len(_COLOURS)))]
    for (name, values), (pattern, colour) in zip(drawable.items(), product(patterns, _COLOURS), strict=False):
        size = math.ceil(len(values) / MOST_PLACES)
        places = pd.DataFrame({"x": values.index, "y": values.to_numpy()}).groupby(np.arange(len(values)) // size).mean()
        last = f"{name}, at the end {values.iloc[-1]:,.4g}" if unit == "update" else name
        axes.plot(places.x, places.y, color=colour, linestyle=pattern, label=last, marker="o" if len(places) == 1 else "")
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(LogFormatter())
    else:
        axes.set_ylim(bottom=min(0.0, *(float(values.min()) for values in drawable.values())))
    axes.set_xlim(left=0)
    for axis, label in ((axes.xaxis, unit), (axes.yaxis, measure)):
        axis.set_label_text(label, fontsize=_TEXT, color=MUTED)
        axis.set_major_formatter("{x:,.10g}")
    axes.tick_params(which="both", length=0, labelsize=_TEXT, labelcolor=MUTED)
    axes.grid(axis="y", which="both", color=RULE)
    axes.spines[:].set_visible(False)
    figure.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize=_TEXT, handlelength=4)
    return figure
