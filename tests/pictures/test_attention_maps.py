"""Grids of heat maps: their size, their colours, and labels that a drawing library may stumble over."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from transformer_core.pictures.attention_maps import AttentionMaps, attention_picture

DARKEST, LIGHTEST = (8, 48, 107), (247, 251, 255)  # Of matplotlib's "Blues".


def a_grid(rows: list[str], columns: list[str], weights: NDArray[np.float32], across: int = 1) -> Figure:
    """Maps of the heads of a layer, (H, R, C), without the dots before labels."""
    maps = AttentionMaps([f"\u2581{label}" for label in columns], [], [f"\u2581{label}" for label in rows], {"cross": weights[None]})
    return attention_picture(maps, "cross", [(1, head) for head in range(1, len(weights) + 1)], across)


def pixels(figure: Figure, path: Path) -> NDArray[np.uint8]:
    figure.savefig(path)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def test_each_label_takes_sixteen_pixels_and_each_map_its_place(tmp_path: Path) -> None:
    def size(columns: int, rows: int, maps: int = 1, across: int = 1) -> tuple[int, int]:
        weights = np.zeros((maps, rows, columns), np.float32)
        height, width, _ = pixels(a_grid(["abc"] * rows, ["ab"] * columns, weights, across), tmp_path / "a.png").shape
        return width, height

    width, height = size(30, 20)
    assert size(31, 20) == (width + 16, height)
    assert size(30, 22) == (width, height + 32)
    # A map with its labels: what a third beside two, or below them, adds.
    assert size(30, 20, 3, across=3)[0] - size(30, 20, 2, across=2)[0] == pytest.approx(30 * 16 + 50, abs=20)
    assert size(30, 20, 3, across=1)[1] - size(30, 20, 2, across=1)[1] == pytest.approx(20 * 16 + 50, abs=20)


def test_each_map_has_its_labels_and_the_greatest_weight_is_the_darkest_cell(tmp_path: Path) -> None:
    rows, columns = [*"abcde"], [*"vwxyz", "$x_$", "\\frac"]
    weights = np.random.default_rng(1).random((5, 5, 7), dtype=np.float32) / 2
    greatest = [(0, 0), (4, 6), (2, 3), (0, 6), (4, 0)]
    for one, cell in zip(weights, greatest, strict=True):
        one[cell], one[1, 1] = 1, 0
    figure = a_grid(rows, columns, weights, across=2)
    drawn = pixels(figure, tmp_path / "a.png")
    *maps, _ = figure.axes  # The last is the scale of colours.
    for axes, (row, column) in zip(maps, greatest, strict=True):
        assert [label.get_text() for label in axes.get_yticklabels()] == rows
        assert [label.get_text() for label in axes.get_xticklabels()] == columns
        across, up = axes.transData.transform([(column, row), (1, 1)]).round().astype(int).T
        assert [tuple(drawn[len(drawn) - y, x]) for x, y in zip(across, up, strict=True)] == [DARKEST, LIGHTEST]
        left, bottom, right, top = axes.bbox.extents.round().astype(int)
        blocks = (drawn[len(drawn) - top : len(drawn) - bottom, left:right] == DARKEST).all(axis=2).sum()
        assert blocks == pytest.approx(16 * 16, abs=64)  # The frame covers the edges of a cell in a corner.


def test_a_long_heading_is_cut_to_the_picture() -> None:
    figure = a_grid(["b"], ["word "] * 200, np.zeros((1, 1, 200), np.float32))
    (heading,) = figure.texts
    assert heading.get_text().split("\n")[2].endswith("…")
    assert figure.bbox.width * 0.5 < heading.get_window_extent().x1 < figure.bbox.width
