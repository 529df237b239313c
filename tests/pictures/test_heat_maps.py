"""Grids of heat maps: their size, their colours, and texts that a font or a drawing library may stumble over."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from tests.refusals import refused
from transformer_core.pictures.drawing import Fonts, find_fonts, save
from transformer_core.pictures.heat_maps import heat_maps

FONTS = Fonts(["DejaVu Sans"], "")
DARKEST, LIGHTEST = (8, 48, 107), (247, 251, 255)  # Of matplotlib's "Blues".
NO_CHARACTER = "\u0378"  # Not assigned, so no font draws it.


def a_grid(rows: list[str], columns: list[str], maps: int = 1, across: int = 1, heading: str = "A heading", fonts: Fonts = FONTS) -> Figure:
    """Maps whose weights are 0."""
    panels = [(f"map {number}", np.zeros((len(rows), len(columns)), np.float32)) for number in range(maps)]
    return heat_maps(panels, rows, columns, [heading], across, fonts)


def pixels(figure: Figure, path: Path) -> NDArray[np.uint8]:
    save(figure, path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def test_each_label_takes_sixteen_pixels_and_each_map_its_place(tmp_path: Path) -> None:
    def size(columns: int, rows: int, maps: int = 1, across: int = 1) -> tuple[int, int]:
        height, width, _ = pixels(a_grid(["abc"] * rows, ["ab"] * columns, maps, across), tmp_path / "a.png").shape
        return width, height

    width, height = size(30, 20)
    assert size(31, 20) == (width + 16, height)
    assert size(30, 22) == (width, height + 32)
    # A map with its labels: what a third beside two, or below them, adds.
    assert size(30, 20, 3, across=3)[0] - size(30, 20, 2, across=2)[0] == pytest.approx(30 * 16 + 50, abs=20)
    assert size(30, 20, 3, across=1)[1] - size(30, 20, 2, across=1)[1] == pytest.approx(20 * 16 + 50, abs=20)


def test_labels_have_the_room_that_they_take(tmp_path: Path) -> None:
    for piece in ("▁WWWWWWWWWWWWWWW", "ЩЩЩЩЩЩЩЩЩЩЩЩЩЩЩЩ", "iiiiiiiiiiiiiiii", NO_CHARACTER * 8):
        drawn = pixels(a_grid([piece] * 12, [piece] * 20), tmp_path / "a.png")
        heading = 85  # Pixels; below it the left edge has labels, and so has the lower one.
        assert (drawn[heading:, 0] == 255).all()
        assert (drawn[heading:, 1:6] < 128).any()
        assert (drawn[-1] == 255).all()
        assert (drawn[-6:-1] < 128).any()


def test_each_map_has_its_weights_and_labels_and_the_greatest_is_the_darkest_cell(tmp_path: Path) -> None:
    rows, columns, chance = [*"abcde"], [*"vwxyz", "$x_$", "</s>"], np.random.default_rng(1)
    weights = [chance.random((5, 7), dtype=np.float32) / 2 for _ in range(5)]
    greatest = [(0, 0), (4, 6), (2, 3), (0, 6), (4, 0)]
    for one, cell in zip(weights, greatest, strict=True):
        one[cell], one[1, 1] = 1, 0
    figure = heat_maps([(f"map {number}", one) for number, one in enumerate(weights)], rows, columns, ["$\\frac$"], 2, FONTS)
    drawn = pixels(figure, tmp_path / "a.png")
    *maps, _ = figure.axes  # The last is the scale of colours.
    for number, (axes, one, (row, column)) in enumerate(zip(maps, weights, greatest, strict=True)):
        assert axes.get_title() == f"map {number}"
        np.testing.assert_array_equal(axes.images[0].get_array(), one)
        assert [label.get_text() for label in axes.get_yticklabels()] == rows
        assert [label.get_text() for label in axes.get_xticklabels()] == columns
        across, up = axes.transData.transform([(column, row), (1, 1)]).round().astype(int).T
        assert [tuple(drawn[len(drawn) - y, x]) for x, y in zip(across, up, strict=True)] == [DARKEST, LIGHTEST]
        left, bottom, right, top = axes.bbox.extents.round().astype(int)
        blocks = (drawn[len(drawn) - top : len(drawn) - bottom, left:right] == DARKEST).all(axis=2).sum()
        assert blocks == pytest.approx(16 * 16, abs=64)  # The frame covers the edges of a cell in a corner.


def test_a_letter_that_matplotlibs_font_lacks_is_looked_for_in_others() -> None:
    plain = find_fonts(["▁Straße", "▁café", "▁كيف", "</s>"])
    assert plain == Fonts(["DejaVu Sans"], "")
    more = find_fonts(["a", "\u2a7d\u1d81"])  # STIX, which comes with matplotlib too, has the second.
    assert more.families[0] == "DejaVu Sans"
    assert len(more.families) == 2
    assert more.missing == ""


def test_what_no_font_draws_is_told_once_and_neither_warned_of_nor_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fonts = find_fonts(["a\u200d", NO_CHARACTER, f"b{NO_CHARACTER}"])
    assert fonts.missing == NO_CHARACTER  # The joiner has no shape of its own.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels(a_grid(["a"], [NO_CHARACTER], fonts=fonts), tmp_path / "a.png")
    assert caplog.records == []


def test_a_long_heading_is_cut_to_the_picture() -> None:
    figure = a_grid(["b"], ["word"] * 200, heading="word " * 800)
    (heading,) = figure.texts
    assert heading.get_text().endswith("…")
    assert figure.bbox.width * 0.5 < heading.get_window_extent().x1 < figure.bbox.width


def test_a_picture_of_hundreds_of_megapixels_is_refused() -> None:
    with refused(78, r"the picture would have \d+ megapixels, more than 60\. Choose fewer layers or heads, or a shorter sentence\."):
        a_grid(["a"] * 200, ["b"] * 200, maps=48, across=8)
