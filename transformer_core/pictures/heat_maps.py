"""Weights as pictures: a grid of heat maps with the same labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from transformer_core.pictures.drawing import columns_of, new_figure, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Pixels.
_CELL, _GAP, _TITLE, _HEADING, _MARGIN, _SCALE = 16, 20, 25, 85, 8, 80
_LEAST_WIDTH, _LEAST_HEIGHT, _LETTER = 400, 270, 8
_POINTS, _HEADING_POINTS = 7.5, 9.0
_SCALE_LABELS = (0, 0.1, 0.25, 0.5, 1)
# A "$" in a label does not start mathematics.
_STYLE: dict[str, Any] = {"parse_math": False, "fontsize": _POINTS}


def heat_maps(
    panels: Sequence[tuple[str, NDArray[np.float32]]],
    rows: Sequence[str],
    columns: Sequence[str],
    heading: Sequence[str],
    across: int,
) -> Figure:
    """Draw a grid of heat maps, `across` in a row, with one colour scale from 0 to 1: a square root, so that 1/20 is visible.

    Args:
        panels: title and weights, (R, C) between 0 and 1, of each map.
        rows: the R labels of the rows.
        columns: the C labels of the columns.
        heading: lines above the grid; they are cut to its width.
        across: number of maps in a row.
    """
    from matplotlib.colors import PowerNorm

    beside, map_width, map_height = _label_width(rows), len(columns) * _CELL, len(rows) * _CELL
    panel_width, panel_height = beside + map_width + _GAP, _TITLE + map_height + _label_width(columns)
    width = max(_LEAST_WIDTH, min(across, len(panels)) * panel_width + _SCALE)
    height = max(_LEAST_HEIGHT, _HEADING + -(-len(panels) // across) * panel_height)
    figure = new_figure(width, height)
    lines = "\n".join(shortened(line, int((width - 2 * _MARGIN) / _LETTER)) for line in heading)
    figure.text(_MARGIN / width, 1 - _MARGIN / height, lines, va="top", linespacing=1.4, **{**_STYLE, "fontsize": _HEADING_POINTS})
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for number, (title, weights) in enumerate(panels):
        left = number % across * panel_width + beside
        top = _HEADING + number // across * panel_height + _TITLE
        axes = figure.add_axes((left / width, 1 - (top + map_height) / height, map_width / width, map_height / height))
        image = axes.imshow(weights, "Blues", norm, aspect="auto", interpolation="nearest")
        axes.set_title(title, fontsize=_POINTS, pad=4)
        axes.set_xticks(range(len(columns)), columns, rotation=90, **_STYLE)
        axes.set_yticks(range(len(rows)), rows, **_STYLE)
        axes.tick_params(length=0, pad=3)
        axes.spines[:].set_color("0.8")
    scale = figure.add_axes((1 - 60 / width, 1 - (_HEADING + _TITLE + 150) / height, 10 / width, 150 / height))
    figure.colorbar(image, scale, ticks=_SCALE_LABELS, format="{x:g}").outline.set_edgecolor("0.8")
    scale.tick_params(length=0, labelsize=_POINTS)
    return figure


def _label_width(labels: Iterable[str]) -> int:
    """Return the approximate width of the longest label in pixels, with a gap at one end."""
    return _MARGIN + _LETTER * max(map(columns_of, labels))
