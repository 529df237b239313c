import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.drawn import Drawn
from transformer_core.evaluation.charts import axis_label, length_charts, line_chart


def test_the_lengths_of_a_language_are_drawn_before_and_after_cleaning_without_the_few_longest() -> None:
    before, after = [0] * 201, [0] * 201
    before[3:6], before[200] = [100, 600, 299], 1
    after[3:6] = [100, 500, 299]
    (chart,) = length_charts({"lengths_in": {"de": before}, "lengths_out": {"de": after}})
    assert chart.legend == ["before cleaning, most often 4 words", "after, most often 4 words"]
    drawn = Drawn(chart.svg)
    assert drawn.title == f"Sentence lengths, de by words: {'; '.join(chart.legend)}"
    dots = [line for line in drawn.lines if line.name == "dot words"]
    assert [dot.hover for dot in dots[:6]] == ["words 0: 0", "words 1: 0", "words 2: 0", "words 3: 100", "words 4: 600", "words 5: 299"]
    assert len(dots) == 12
    assert dots[4].points[0][1] < dots[10].points[0][1]


def test_a_training_that_diverged_is_drawn_as_far_as_it_can_be() -> None:
    values = pd.Series([9.0, math.inf, math.nan, 0.0, 3.0], [20, 40, 60, 80, 100])
    drawn = Drawn(line_chart("Perplexity", "", {"training": values}, logarithmic=True).svg)
    assert [line.hover for line in drawn.lines if line.hover] == ["update 20: 9", "update 100: 3"]


def test_a_single_validation_is_a_dot() -> None:
    (dot,) = [line for line in Drawn(line_chart("Accuracy", "", {"validation": pd.Series({200: 0.5})}).svg).lines if line.hover]
    assert (dot.points[0], dot.hover) == ((350, 24), "update 200: 0.5")


def test_a_long_training_is_drawn_with_few_places_and_without_dots() -> None:
    drawn = Drawn(line_chart("Loss", "", {"loss": pd.Series(np.random.default_rng(1).random(100_000))}).svg)
    assert 200 < max(len(line.points) for line in drawn.lines) <= 240
    assert not [line for line in drawn.lines if line.name]


@settings(max_examples=25)  # A chart takes some 50 ms.
@given(low=st.floats(1e-6, 1e6), factor=st.floats(1, 1e9), logarithmic=st.booleans())
def test_ticks_lie_on_the_axes_and_are_neither_none_nor_many(low: float, factor: float, logarithmic: bool) -> None:
    drawn = Drawn(line_chart("", "", {"": pd.Series([low, low * factor], [0, 10])}, logarithmic).svg)
    levels = [text.y for text in drawn.texts if "text-anchor: end" in text.style]
    assert all(24 <= level <= 208 for level in levels)  # By their baselines, up to 5 below their lines.
    assert (1 if factor > 2 else 0) <= len(levels) <= 10
    assert [text.text for text in drawn.texts if text.y > 208] == ["0", "2", "4", "6", "8", "10", "update"]


@pytest.mark.parametrize(
    ("value", "label"), [(0.0007, "0.0007"), (250.0, "250"), (1200.0, "1,200"), (40_000.0, "40k"), (1.5e6, "1.5M"), (0.1 + 0.2, "0.3")]
)
def test_numbers_on_axes_are_short(value: float, label: str) -> None:
    assert axis_label(value) == label
