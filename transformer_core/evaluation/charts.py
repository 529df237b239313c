"""Line charts as numbers for SVG: what a training did over its updates, and how long a corpus' sentences are."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import Any, Literal

Point = tuple[float, float]

# A chart in its own units; on the page it is about as wide as a phone, so its text keeps its size everywhere.
LEFT, RIGHT, TOP, BOTTOM = 46.0, 350.0, 8.0, 186.0
SHARE_SHOWN = 0.995
MOST_PLACES, MOST_DOTS, MOST_TICKS = 240, 40, 8


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, in chart units, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """One line of a chart, in chart units: the `d` of an SVG path, and the points themselves where they are few enough to mark."""

    name: str
    path: str
    dots: list[tuple[float, float, str]]
    in_words: str


@dataclass(frozen=True)
class Chart:
    """A line chart, ready to be drawn; `unit` is what its x axis counts."""

    title: str
    note: str
    unit: str
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]


@dataclass(frozen=True)
class Axis:
    """Maps values from `low` to `high` to chart units from `start` to `end`, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The value's place in chart units; the middle where the axis has no extent."""
        low, high, value = (math.log(x) if self.logarithmic else x for x in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[Tick]:
        """About five round values between `low` and `high`."""
        values = _powers(self.low, self.high) if self.logarithmic and self.high > 10 * self.low else _multiples(self.low, self.high)
        return [Tick(self.at(value), short(value)) for value in values]


def training_charts(updates: Sequence[Mapping[str, float]], validation: Sequence[Mapping[str, float]], score: str) -> list[Chart]:
    """Perplexity, the score of outputs (named `score`), loss, learning rate, length of the gradient and speed over the updates."""
    return [
        line_chart(
            "Perplexity",
            "How many subwords the model hesitates between; 1 is certainty. Logarithmic scale.",
            {"training": _column(updates, "perplexity"), "validation": _column(validation, "perplexity")},
            logarithmic=True,
        ),
        line_chart(
            f"{score} while training",
            "Greedy outputs for a part of valid: lower than a beam's of the averaged model.",
            {"validation": _column(validation, "score")},
        ),
        line_chart("Training loss", "What training lowers, label smoothing and all.", {"loss": _column(updates, "loss")}),
        line_chart("Learning rate", "Rises during the warmup, then falls.", {"learning rate": _column(updates, "learning_rate")}),
        line_chart("Gradient", "Its length: a spike is an update that went wrong.", {"norm": _column(updates, "gradient_norm")}),
        line_chart("Speed", "Target tokens a second, all devices together.", {"tokens/s": _column(updates, "tokens_per_second")}),
    ]


def length_charts(cleaning: Mapping[str, Any]) -> list[Chart]:
    """How many training sentences have how many words, before and after cleaning, for each language."""
    return [
        line_chart(
            f"Sentence lengths, {language}",
            f"Training sentences by their words; the longest {100 - 100 * SHARE_SHOWN:.1f}% are not drawn.",
            {"before cleaning": _histogram(counts, counts), "after": _histogram(cleaning["lengths_out"][language], counts)},
            unit="words",
        )
        for language, counts in cleaning["lengths_in"].items()
    ]


def line_chart(
    title: str, note: str, series: Mapping[str, Sequence[Point]], logarithmic: bool = False, unit: Literal["update", "words"] = "update"
) -> Chart:
    """Lay out a chart of points (update or words, value), each series in order; an even axis starts at 0, a logarithmic one where they do.

    Points that cannot be drawn (not finite; not above 0 on a logarithmic scale) are left out.
    """
    drawable = {name: [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not logarithmic)] for name, points in series.items()}
    everything = [point for points in drawable.values() for point in points]
    if not everything:
        return Chart(title, note, unit, [], [], [])
    x_values, y_values = zip(*everything, strict=True)
    x_axis = Axis(0, max(x_values), LEFT, RIGHT)
    y_axis = Axis(min(y_values) if logarithmic else min(0, *y_values), max(y_values), BOTTOM, TOP, logarithmic)
    lines = [_line(name, points, x_axis, y_axis, unit) for name, points in drawable.items() if points]
    return Chart(title, note, unit, lines, x_axis.ticks(), y_axis.ticks())


def grouped(number: float) -> str:
    """A whole number with its thousands separated: 28,973."""
    return f"{number:,.0f}"


def short(value: float) -> str:
    """A number for an axis: 0.0007, 250, 1,200, 40k, 1.5M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    return grouped(value) if abs(value) >= 1e3 else f"{value:.4g}"


def _column(rows: Iterable[Mapping[str, float]], name: str) -> list[Point]:
    return [(row["update"], row[name]) for row in rows]


def _histogram(counts: Sequence[int], whole: Sequence[int]) -> list[Point]:
    """The counts as points, up to the length that `SHARE_SHOWN` of the whole have at most."""
    most = SHARE_SHOWN * sum(whole)
    shown = sum(total < most for total in accumulate(whole)) + 1
    return [(float(length), float(count)) for length, count in enumerate(counts[:shown])]


def _line(name: str, points: Sequence[Point], x_axis: Axis, y_axis: Axis, unit: str) -> Line:
    places = _thinned([(x_axis.at(x), y_axis.at(y)) for x, y in points])
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = [(x_axis.at(x), y_axis.at(y), f"{unit} {grouped(x)}: {short(y)}") for x, y in points] if len(points) <= MOST_DOTS else []
    in_words = f"{name}, at the end {short(points[-1][1])}" if unit == "update" else f"{name}, most often {_peak(points)} words"
    return Line(name, path, dots, in_words)


def _peak(points: Sequence[Point]) -> str:
    return grouped(max(points, key=lambda point: point[1])[0])


def _thinned(places: Sequence[Point]) -> list[Point]:
    """At most `MOST_PLACES` places: the mean of each run of neighbours, so that a long, rough curve stays small and readable."""
    size = math.ceil(len(places) / MOST_PLACES)
    runs = [places[start : start + size] for start in range(0, len(places), size)]
    return [(fmean(x for x, _ in run), fmean(y for _, y in run)) for run in runs]


def _multiples(low: float, high: float) -> list[float]:
    """The multiples of a round step between `low` and `high`, five or fewer; `low` alone where both are the same but for rounding."""
    if high - low <= 1e-9 * abs(high):
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10, 20) if (high - low) / (size * factor) < 5)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten between `low` and `high`, with their doubles and fives, or threes, where there is room."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    scales = [[factor * 10.0**exponent for exponent in exponents for factor in factors] for factors in ((1, 2, 5), (1, 3), (1,))]
    within = [[value for value in scale if low <= value <= high] for scale in scales]
    return next((values for values in within if len(values) <= MOST_TICKS), within[-1])
