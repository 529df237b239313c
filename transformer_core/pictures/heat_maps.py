"""Weights as pictures: a grid of heat maps with the same labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from transformer_core.errors import configuration_error
from transformer_core.pictures.drawing import Fonts, new_figure, shortened, silent_fonts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_MEGAPIXELS = 60
# Pixels.
_CELL, _GAP, _TITLE, _HEADING, _MARGIN, _SCALE = 16, 20, 25, 85, 8, 80
_LEAST_WIDTH, _LEAST_HEIGHT, _LETTER = 400, 270, 8
_POINTS, _HEADING_POINTS = 7.5, 9.0
_SCALE_LABELS = (0, 0.1, 0.25, 0.5, 1)


def heat_maps(
    panels: Sequence[tuple[str, NDArray[np.float32]]],
    rows: Sequence[str],
    columns: Sequence[str],
    heading: Sequence[str],
    across: int,
    fonts: Fonts,
) -> Figure:
    """Draw a grid of heat maps, `across` in a row, with one colour scale from 0 to 1: a square root, so that 1/20 is visible.

    Args:
        panels: title and weights, (R, C) between 0 and 1, of each map.
        rows: the R labels of the rows.
        columns: the C labels of the columns.
        heading: lines above the grid; they are cut to its width.
        across: number of maps in a row.
        fonts: fonts that draw the labels.

    Raises:
        UserError: exit code 78; the picture would have more than `MOST_MEGAPIXELS`.
    """
    from matplotlib.colors import PowerNorm

    beside, map_width, map_height = _label_width(rows, fonts), len(columns) * _CELL, len(rows) * _CELL
    panel_width, panel_height = beside + map_width + _GAP, _TITLE + map_height + _label_width(columns, fonts)
    width = max(_LEAST_WIDTH, min(across, len(panels)) * panel_width + _SCALE)
    height = max(_LEAST_HEIGHT, _HEADING + -(-len(panels) // across) * panel_height)
    if width * height > MOST_MEGAPIXELS * 1e6:
        fault = f"the picture would have {width * height / 1e6:,.0f} megapixels, more than {MOST_MEGAPIXELS}"
        raise configuration_error(fault, "Choose fewer layers or heads, or a shorter sentence.")
    figure, style = new_figure(width, height), _style(fonts)
    lines = "\n".join(shortened(line, int((width - 2 * _MARGIN) / _LETTER)) for line in heading)
    figure.text(_MARGIN / width, 1 - _MARGIN / height, lines, va="top", linespacing=1.4, **{**style, "fontsize": _HEADING_POINTS})
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for number, (title, weights) in enumerate(panels):
        left = number % across * panel_width + beside
        top = _HEADING + number // across * panel_height + _TITLE
        axes = figure.add_axes((left / width, 1 - (top + map_height) / height, map_width / width, map_height / height))
        image = axes.imshow(weights, "Blues", norm, aspect="auto", interpolation="nearest")
        axes.set_title(title, fontsize=_POINTS, pad=4)
        axes.set_xticks(range(len(columns)), columns, rotation=90, **style)
        axes.set_yticks(range(len(rows)), rows, **style)
        axes.tick_params(length=0, pad=3)
        axes.spines[:].set_color("0.8")
    scale = figure.add_axes((1 - 60 / width, 1 - (_HEADING + _TITLE + 150) / height, 10 / width, 150 / height))
    figure.colorbar(image, scale, ticks=_SCALE_LABELS, format="{x:g}").outline.set_edgecolor("0.8")
    scale.tick_params(length=0, labelsize=_POINTS)
    return figure


@silent_fonts()
def _label_width(labels: Iterable[str], fonts: Fonts) -> float:
    """Return the width of the longest label in pixels, with a gap at both ends."""
    figure = new_figure(100, 100)
    longest: float = max(figure.text(0, 0, label, **_style(fonts)).get_window_extent().width for label in set(labels))
    return _MARGIN + longest


def _style(fonts: Fonts) -> dict[str, Any]:
    # A "$" in a label does not start mathematics.
    return {"parse_math": False, "fontfamily": fonts.families, "fontsize": _POINTS}
