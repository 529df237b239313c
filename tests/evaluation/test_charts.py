import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_core.evaluation.charts import Axis, length_charts, line_chart, short


def test_the_lengths_of_a_language_are_drawn_before_and_after_cleaning_without_the_few_longest() -> None:
    before, after = [0] * 201, [0] * 201
    before[3:6], before[200] = [100, 600, 299], 1
    after[3:6] = [100, 500, 299]
    (chart,) = length_charts({"lengths_in": {"de": before}, "lengths_out": {"de": after}})
    assert [line.in_words for line in chart.lines] == ["before cleaning, most often 4 words", "after, most often 4 words"]
    assert [len(line.dots) for line in chart.lines] == [6, 6]
    highest, lower = (min(y for _, y, _ in line.dots) for line in chart.lines)
    assert highest < lower


def test_a_training_that_diverged_is_drawn_as_far_as_it_can_be() -> None:
    values = [9.0, math.inf, math.nan, 0.0, 3.0]
    chart = line_chart("Perplexity", "", {"training": [(20.0 * n, value) for n, value in enumerate(values, 1)]}, logarithmic=True)
    assert [label for _, _, label in chart.lines[0].dots] == ["update 20: 9", "update 100: 3"]


def test_a_single_validation_is_a_dot() -> None:
    chart = line_chart("Accuracy", "", {"validation": [(200, 0.5)]})
    assert [(round(x), label) for x, _, label in chart.lines[0].dots] == [(350, "update 200: 0.5")]


def test_a_long_training_is_drawn_with_few_places_and_without_dots() -> None:
    chart = line_chart("Loss", "", {"loss": [(float(update), 1.0) for update in range(1, 100_001)]})
    assert chart.lines[0].path.count("L") < 240
    assert chart.lines[0].dots == []


@example(low=1.0, factor=1.0000000000000002, logarithmic=False)  # one rounding step apart
@given(low=st.floats(1e-6, 1e6), factor=st.floats(1, 1e9), logarithmic=st.booleans())
def test_ticks_lie_on_the_axis_and_are_neither_none_nor_many(low: float, factor: float, logarithmic: bool) -> None:
    ticks = Axis(low, low * factor, 0, 100, logarithmic).ticks()
    assert all(-1e-6 <= tick.at <= 100 + 1e-6 for tick in ticks)
    assert (1 if factor > 2 else 0) <= len(ticks) <= 10


@pytest.mark.parametrize(
    ("value", "label"), [(0.0007, "0.0007"), (250.0, "250"), (1200.0, "1,200"), (40_000.0, "40k"), (1.5e6, "1.5M"), (0.1 + 0.2, "0.3")]
)
def test_numbers_on_axes_are_short(value: float, label: str) -> None:
    assert short(value) == label
