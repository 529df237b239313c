import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from tests.pictures.svg import pictures_of
from transformer_core.pictures.curves import length_charts, line_chart, line_figure, training_charts


def axes_of(*series: "pd.Series[float]", logarithmic: bool = False) -> Axes:
    figure = line_figure(dict(zip(("training", "validation"), series, strict=False)), "nats", logarithmic)
    assert figure is not None
    (axes,) = figure.axes
    return axes


def test_curves_are_the_values_at_their_updates_and_the_legend_has_the_last() -> None:
    training, validation = pd.Series([8.0, 4.0, 3.0], [20, 40, 60]), pd.Series([5.5, 2.25], [30, 60])
    axes = axes_of(training, validation)
    for line, values in zip(axes.lines, (training, validation), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack((values.index, values)))
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["training, at the end 3", "validation, at the end 2.25"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("update", "nats")


def test_each_of_many_curves_has_its_own_colour_and_dashes_and_none_is_under_the_legend() -> None:
    figure = line_figure({str(number): pd.Series([number, 1.0]) for number in range(40)}, "nats")
    assert figure is not None
    assert len({(line.get_color(), str(line._dash_pattern)) for line in figure.axes[0].lines}) == 40
    figure.draw_without_rendering()
    assert 0 <= figure.legends[0].get_window_extent().y0 < figure.legends[0].get_window_extent().y1 <= figure.axes[0].get_tightbbox().y0


def test_the_lengths_of_a_language_are_drawn_before_and_after_cleaning_without_the_few_longest() -> None:
    before, after = [0] * 201, [0] * 201
    before[3:6], before[200] = [100, 600, 299], 1
    after[3:6] = [100, 500, 299]
    (chart,) = length_charts({"lengths_in": {"de": before}, "lengths_out": {"de": after}}, {"de": "words"})
    assert chart.title == "Sentence lengths, de"
    places, levels = ["0", "1", "2", "3", "4", "5"], ["0", "100", "200", "300", "400", "500", "600"]
    ((alt, texts),) = pictures_of(chart.image)
    assert alt == "Sentence lengths, de by words"
    assert texts == [*places, "words", *levels, "sentences", "before cleaning", "after"]


def test_a_training_that_diverged_is_drawn_as_far_as_it_can_be() -> None:
    values = pd.Series([9.0, math.inf, math.nan, 0.0, 3.0], [20, 40, 60, 80, 100])
    assert axes_of(values, logarithmic=True).lines[0].get_xydata().tolist() == [[20, 9], [100, 3]]
    assert axes_of(values).lines[0].get_xydata().tolist() == [[20, 9], [80, 0], [100, 3]]


def test_a_linear_axis_starts_at_zero_or_at_what_is_below() -> None:
    assert axes_of(pd.Series([5.0, 6.0])).get_ylim()[0] == 0
    assert axes_of(pd.Series([5.0, -6.0])).get_ylim()[0] == -6
    assert 0 < axes_of(pd.Series([5.0, 6.0]), logarithmic=True).get_ylim()[0] < 5


def test_a_single_validation_is_a_dot() -> None:
    one, two = axes_of(pd.Series({200: 0.5}), pd.Series({200: 0.5, 400: 0.6})).lines
    assert (one.get_marker(), two.get_marker()) == ("o", "")


def test_a_curve_has_at_most_240_points_the_means_of_neighbours() -> None:
    values = np.random.default_rng(1).random(1_000)
    (line,) = axes_of(pd.Series(values)).lines
    means = values.reshape(200, 5).mean(axis=1)  # A thousand fit into 240 places by five.
    np.testing.assert_allclose(line.get_xydata(), np.column_stack((np.arange(2, 1_000, 5), means)))
    (line,) = axes_of(pd.Series(values[:240])).lines
    np.testing.assert_array_equal(line.get_ydata(), values[:240])


@pytest.mark.parametrize("number", [0.0, math.nan, math.inf, 1e-45, 3e38])
def test_whatever_was_measured_the_pictures_are_well_formed(number: float) -> None:
    measured = dict.fromkeys(("perplexity", "loss", "gradient_norm"), number)
    update = {"update": 200.0, "learning_rate": 0.0, "tokens_per_second": 0.0, **measured}
    charts = training_charts([update] * 2, [{"update": 200.0, "perplexity": number, "score": number}], "BLEU")
    drawn = {chart.title: pictures_of(chart.image) for chart in charts if chart.image}
    assert "Learning rate" in drawn
    assert ("Training loss" in drawn) == math.isfinite(number)
    assert ("Perplexity" in drawn) == (math.isfinite(number) and number > 0)


def test_hostile_text_of_a_picture_is_escaped() -> None:
    image = line_chart('"><b>', "", {"<i>&": pd.Series([1.0, 2.0])}).image
    ((alt, texts),) = pictures_of(image)
    assert (alt, texts[-1]) == ('"><b> by update', "<i>&, at the end 2")
    assert 'alt="&quot;&gt;&lt;b&gt; by update">' in image
