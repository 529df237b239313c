"""The picture of positional encodings: what is drawn is the paper's formula, or what a model has learned."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tests.refusals import refused
from transformer_core.baselines.sizes import ConvolutionalSize
from transformer_core.models.architectures import build
from transformer_core.models.embeddings import LearnedPositions
from transformer_core.models.transformer import Transformer
from transformer_core.pictures.positions import encodings_of, position_figure, sinusoids
from transformer_core.presets import TransformerSize

SIZE = TransformerSize(layers=1, d_model=16, d_ff=16, heads=2, d_k=8, d_v=8, dropout=0.0)


def by_hand(positions: int, d_model: int) -> "np.typing.NDArray[np.float64]":
    """The formula of 3.5 as the paper has it, a number at a time."""
    table = np.empty((positions, d_model))
    for pos in range(positions):
        for i in range(d_model // 2):
            table[pos, 2 * i] = math.sin(pos / 10000 ** (2 * i / d_model))
            table[pos, 2 * i + 1] = math.cos(pos / 10000 ** (2 * i / d_model))
    return table


def learned() -> Transformer:
    torch.manual_seed(1)
    model = build(replace(SIZE, positions="learned", most_positions=9), 20)
    assert isinstance(model, Transformer)
    return model.eval()


def caption(figure: Figure) -> str:
    return figure.texts[0].get_text().replace("\n", " ").replace("\N{NO-BREAK SPACE}", " ")


def test_the_values_drawn_are_those_of_the_papers_formula() -> None:
    heat_map = position_figure([sinusoids(100, 512)]).axes[0]
    # Angles of up to 99 are off by 99 * 2^-52 * a few roundings of the power.
    np.testing.assert_allclose(heat_map.images[0].get_array(), by_hand(100, 512), rtol=0, atol=1e-12)


@pytest.mark.parametrize("d_model", [2, 16, 512])
def test_the_product_depends_on_the_distance_alone(d_model: int) -> None:
    lines = position_figure([sinusoids(100, d_model)]).axes[1].get_lines()
    assert [line.get_label() for line in lines] == [f"pos = {pos}" for pos in (0, 24, 49, 74, 99)]
    for line, pos in zip(lines, (0, 24, 49, 74, 99), strict=True):
        assert list(line.get_xdata()) == [other - pos for other in range(100)]
        # sin a sin b + cos a cos b = cos(a - b), summed over the pairs.
        expected = [sum(math.cos(k / 10000 ** (2 * i / d_model)) for i in range(d_model // 2)) for k in line.get_xdata()]
        np.testing.assert_allclose(line.get_ydata(), expected, rtol=0, atol=1e-9)


def test_the_caption_has_the_greatest_difference_at_one_distance() -> None:
    encodings = encodings_of(learned(), 9)
    products = encodings[0].values @ encodings[0].values.T
    greatest = max(np.ptp([products[pos, pos + k] for pos in (0, 2, 4, 6, 8) if 0 <= pos + k < 9]) for k in range(-8, 9))
    assert greatest > 1
    assert f"at the same k two curves differ by up to {greatest:.3g}." in caption(position_figure(encodings[:1]))
    assert "the curves of all pos lie on each other" in caption(position_figure([sinusoids(20, 16)]))


def test_a_model_with_sinusoids_has_those_of_its_width() -> None:
    for size in (SIZE, ConvolutionalSize(layers=1, d_model=16, dropout=0.0)):
        (encodings,) = encodings_of(build(size, 20), 30)
        np.testing.assert_allclose(encodings.values, by_hand(30, 16), rtol=0, atol=1e-12)


def test_learned_positions_are_drawn_as_the_model_has_them_for_either_side() -> None:
    model = learned()
    figure = position_figure(encodings_of(model, 7))
    drawn = [axes for axes in figure.axes if axes.images and axes.get_xlabel() == "dimension i"]
    assert [axes.get_title() for axes in drawn] == ["PE(pos, i), source", "PE(pos, i), target"]
    for axes, side in zip(drawn, (model.source_positions, model.target_positions), strict=True):
        assert isinstance(side, LearnedPositions)
        np.testing.assert_array_equal(axes.images[0].get_array(), side.weight[:7].detach().double().numpy())


def test_the_caption_stands_below_the_panels_and_within_the_figure() -> None:
    for sides in ([sinusoids(20, 512)], encodings_of(learned(), 9)):
        figure = position_figure(sides)
        figure.draw_without_rendering()
        text = figure.texts[0].get_window_extent()
        assert text.y0 >= 0
        assert text.x1 <= figure.bbox.x1
        assert all(text.y1 < axes.get_tightbbox().y0 for axes in figure.axes)


def test_a_model_without_positions_is_refused() -> None:
    with refused(78, "this model has no positional encodings: its setting model.positions is none"):
        encodings_of(build(replace(SIZE, positions="none"), 20), 10)
