"""Attention weights as pictures: a heat map for each layer and head, tokens at its edges."""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.errors import configuration_error
from transformer_core.evaluation.attention import AttentionMaps, Kind
from transformer_core.files import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DOTS_PER_INCH = 100
MOST_MEGAPIXELS = 60

# Inches.
_CELL, _GAP, _LABEL_GAP, _TITLE, _HEADING, _MARGIN = 0.16, 0.2, 0.04, 0.25, 0.55, 0.08
_BAR_WIDTH, _BAR_HEIGHT, _BAR_AND_LABELS = 0.1, 1.5, 0.6
_LEAST_WIDTH, _LEAST_HEIGHT = 4.0, _HEADING + _TITLE + _BAR_HEIGHT + _MARGIN

_POINTS, _HEADING_POINTS = 7.5, 9.0
_BAR_LABELS = (0, 0.1, 0.25, 0.5, 1)
_COLOURS = "Blues"
_FONT, _DRAWS_BOXES = "DejaVu Sans", "Last Resort"  # Both come with matplotlib.

_HEADINGS: dict[Kind, str] = {
    "encoder": "Encoder self-attention\nrow: source token, column: what it attends to",
    "decoder": "Decoder self-attention\nrow: target token read, column: what it attends to",
    "cross": "Attention to the source\nrow: target token predicted, column: what is attended to",
}


@dataclass(frozen=True)
class Fonts:
    """Families that together draw a text, matplotlib's own first, and the characters that none of the installed ones draws."""

    families: list[str]
    missing: str


@contextmanager
def _without_a_word_on_fonts() -> Iterator[None]:
    """matplotlib warns of each character that no font draws (`Fonts.missing` has them, once) and logs each weight that a family lacks."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            yield
    finally:
        log.setLevel(level)


class Box(NamedTuple):
    """A rectangle, in inches from the left and upper edges."""

    left: float
    right: float
    bottom: float
    top: float


class _Grid:
    """Where things stand, in inches from the top left corner: `down` maps under each other, `across` side by side."""

    def __init__(self, rows: Sequence[str], columns: Sequence[str], down: int, across: int, fonts: Fonts) -> None:
        self._map_width, self._map_height = len(columns) * _CELL, len(rows) * _CELL
        self._beside, below = _room(rows, fonts), _room(columns, fonts)
        self._panel_width = self._beside + self._map_width + _GAP
        self._panel_height = _TITLE + self._map_height + below
        self._bar_left = across * self._panel_width
        self.width = max(_LEAST_WIDTH, self._bar_left + _BAR_AND_LABELS)
        self.height = max(_LEAST_HEIGHT, _HEADING + down * self._panel_height)

    def at(self, row: int, column: int) -> Box:
        """The map of a place in the grid, from 0."""
        left, top = column * self._panel_width + self._beside, _HEADING + row * self._panel_height + _TITLE
        return Box(left, left + self._map_width, top + self._map_height, top)

    def bar(self) -> Box:
        """The colour scale, beside the first row."""
        top = _HEADING + _TITLE
        return Box(self._bar_left, self._bar_left + _BAR_WIDTH, top + _BAR_HEIGHT, top)


def heat_maps(maps: AttentionMaps, kind: Kind, layers: Sequence[int], heads: Sequence[int], fonts: Fonts) -> Figure:
    """A grid of layers (downward) by heads (across), every map with its own labels, one colour scale from 0 to 1 for all.

    The scale is that of square roots, so that a weight of 1/20 is still seen.

    Raises:
        UserError: exit code 78; a picture of more than `MOST_MEGAPIXELS`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = maps.rows(kind), maps.columns(kind)
    grid = _Grid(rows, columns, len(layers), len(heads), fonts)
    _check_size(grid)
    figure = Figure((grid.width, grid.height), dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    # One coordinate system for all, and labels as plain text: a map with axes and ticks of its own takes half as long again to draw.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    axes.text(_MARGIN, _MARGIN, _HEADINGS[kind], va="top", linespacing=1.4, fontsize=_HEADING_POINTS)
    for (row, layer), (column, head) in product(enumerate(layers), enumerate(heads)):
        place = grid.at(row, column)
        _draw(axes, maps.of(kind, layer, head), place)
        axes.text((place.left + place.right) / 2, place.top - _LABEL_GAP, f"layer {layer}, head {head}", ha="center", fontsize=_POINTS)
        _label(axes, place, rows, columns, fonts)
    _draw_scale(axes, grid.bar())
    axes.set(xlim=(0, grid.width), ylim=(grid.height, 0))
    return figure


def _draw(axes: Axes, weights: NDArray[np.floating], place: Box) -> None:
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    axes.imshow(weights, _COLOURS, PowerNorm(0.5, vmin=0, vmax=1), extent=place, aspect="auto", interpolation="nearest")
    frame = Rectangle((place.left, place.top), place.right - place.left, place.bottom - place.top, fill=False, edgecolor="0.8")
    axes.add_patch(frame)


def _draw_scale(axes: Axes, place: Box) -> None:
    weights = np.linspace(1, 0, 256)[:, None] ** 2
    _draw(axes, weights, place)
    for weight in _BAR_LABELS:
        height = place.bottom + (place.top - place.bottom) * weight**0.5
        axes.text(place.right + _LABEL_GAP, height, f"{weight:g}", va="center_baseline", fontsize=_POINTS)


def _label(axes: Axes, place: Box, rows: Sequence[str], columns: Sequence[str], fonts: Fonts) -> None:
    style = _style(fonts)
    for number, piece in enumerate(rows):
        axes.text(place.left - _LABEL_GAP, place.top + (number + 0.5) * _CELL, piece, ha="right", va="center_baseline", **style)
    for number, piece in enumerate(columns):
        axes.text(place.left + (number + 0.5) * _CELL, place.bottom + _LABEL_GAP, piece, ha="center", va="top", rotation=90, **style)


@_without_a_word_on_fonts()
def find_fonts(texts: Iterable[str]) -> Fonts:
    """Look among the installed fonts for what draws all characters of the texts."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    missing = {one for text in texts for one in text if unicodedata.category(one) != "Cf"}
    families = []
    for family in dict.fromkeys([_FONT, *(font.name for font in fontManager.ttflist)]):
        # The file that will be drawn with: another of the family, a bold one say, may have other letters. (In a list a name is taken as
        # it stands; alone it may be a pattern.)
        drawn = missing & _drawn_by(findfont(FontProperties(family=[family])))
        if family == _FONT or (drawn and not family.startswith(_DRAWS_BOXES)):
            families.append(family)
            missing -= drawn
        if not missing:
            break
    return Fonts(families, "".join(sorted(missing)))


def save_png(figure: Figure, path: Path) -> None:
    """Write a picture, whole or not at all."""
    with new_file(path) as temporary, _without_a_word_on_fonts():
        figure.savefig(temporary, format="png")


def _drawn_by(file: str) -> set[str]:
    from matplotlib.font_manager import get_font

    try:
        return {chr(code) for code in get_font(file).get_charmap()}
    except (OSError, RuntimeError):  # matplotlib's list of fonts is kept from earlier: a file may be gone, or be no font any more.
        return set()


def _style(fonts: Fonts) -> dict[str, Any]:
    # Pieces may hold "$", which is not meant as mathematics.
    return {"parse_math": False, "fontfamily": fonts.families, "fontsize": _POINTS}


def _room(labels: Iterable[str], fonts: Fonts) -> float:
    """Inches that the longest label takes, with the gaps at both its ends."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    with _without_a_word_on_fonts():
        longest = max(figure.text(0, 0, label, **_style(fonts)).get_window_extent().width for label in set(labels))
    return 2 * _LABEL_GAP + longest / DOTS_PER_INCH


def _check_size(grid: _Grid) -> None:
    megapixels = grid.width * grid.height * DOTS_PER_INCH**2 / 1e6
    if megapixels > MOST_MEGAPIXELS:
        fault = f"a picture of so many maps would have {megapixels:,.0f} megapixels, more than {MOST_MEGAPIXELS}"
        raise configuration_error(fault, "Choose fewer layers or heads.")
