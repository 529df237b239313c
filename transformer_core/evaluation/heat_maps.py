"""Attention weights as pictures: a heat map per layer and head, with tokens as labels."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_core.corpus.tokens.subword import SPACE_MARK
from transformer_core.errors import configuration_error
from transformer_core.evaluation.attention import AttentionMaps, Kind
from transformer_core.evaluation.attention_figures import readable, shortened
from transformer_core.evaluation.figures import silent_fonts
from transformer_core.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 100
MOST_MEGAPIXELS = 60

# Pixels.
_CELL, _GAP, _LABEL_GAP, _TITLE, _HEADING, _MARGIN = 16, 20, 4, 25, 85, 8
_UNCUT = 1000  # Columns; no piece is so long.
_LETTER = 8  # Approximate width of a letter of the heading.
_SCALE_WIDTH, _SCALE_HEIGHT, _SCALE_AND_LABELS = 10, 150, 60
_LEAST_WIDTH, _LEAST_HEIGHT = 400, _HEADING + _TITLE + _SCALE_HEIGHT + _MARGIN

_POINTS, _HEADING_POINTS = 7.5, 9.0
_SCALE_LABELS = (0, 0.1, 0.25, 0.5, 1)
_FONT, _DRAWS_BOXES = "DejaVu Sans", "Last Resort"  # Both are part of matplotlib; the latter draws placeholder boxes.

_HEADINGS: dict[Kind, str] = {
    "encoder": "Encoder self-attention\nrow: source token, column: what it attends to",
    "decoder": "Decoder self-attention\nrow: target token read, column: what it attends to",
    "cross": "Attention to the source\nrow: target token predicted, column: what is attended to",
}


class Fonts(NamedTuple):
    """Font families that together draw a text, matplotlib's own first, and the characters that no installed font draws."""

    families: list[str]
    missing: str


def heat_maps(maps: AttentionMaps, kind: Kind, layers: Sequence[int], heads: Sequence[int], fonts: Fonts) -> Figure:
    """Draw a grid of layers (rows) by heads (columns); each map has its own labels, and all have one colour scale from 0 to 1.

    The colour scale is a square root, so that a weight of 1/20 is visible. Raises `UserError` (78): the picture would have more than
    `MOST_MEGAPIXELS`.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows, columns = ([readable(piece, _UNCUT) for piece in pieces] for pieces in (maps.rows(kind), maps.columns(kind)))
    beside, map_width, map_height = _label_width(rows, fonts), len(columns) * _CELL, len(rows) * _CELL
    panel_width, panel_height = beside + map_width + _GAP, _TITLE + map_height + _label_width(columns, fonts)
    scale_left = len(heads) * panel_width
    for across, down, too_much, remedy in (
        (1, 1, "so long a sentence", "Shorten it."),
        (len(heads), len(layers), "so many maps", "Choose fewer layers or heads."),
    ):
        width, height = max(_LEAST_WIDTH, across * panel_width + _SCALE_AND_LABELS), max(_LEAST_HEIGHT, _HEADING + down * panel_height)
        megapixels = width * height / 1e6
        if megapixels > MOST_MEGAPIXELS:
            fault = f"a picture of {too_much} would have {megapixels:,.0f} megapixels, more than {MOST_MEGAPIXELS}"
            raise configuration_error(fault, remedy)
    figure = Figure((width / DOTS_PER_INCH, height / DOTS_PER_INCH), dpi=DOTS_PER_INCH)
    # All maps share one coordinate system, and labels are plain text: with axes and ticks for each map, drawing takes 1.5 times as long.
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    style, norm = _style(fonts), PowerNorm(0.5, vmin=0, vmax=1)
    heading = {**style, "fontsize": _HEADING_POINTS, "linespacing": 1.4}
    axes.text(_MARGIN, _MARGIN, f"{_HEADINGS[kind]}\n{_sentences(maps, kind, width)}", va="top", **heading)
    for (row, layer), (column, head) in product(enumerate(layers), enumerate(heads)):
        left, top = column * panel_width + beside, _HEADING + row * panel_height + _TITLE
        right, bottom = left + map_width, top + map_height
        place = (left, right, bottom, top)
        image = axes.imshow(maps.of(kind, layer, head), "Blues", norm, extent=place, aspect="auto", interpolation="nearest")
        axes.add_patch(Rectangle((left, top), map_width, map_height, fill=False, edgecolor="0.8"))
        axes.text((left + right) / 2, top - _LABEL_GAP, f"layer {layer}, head {head}", ha="center", fontsize=_POINTS)
        for number, piece in enumerate(rows):
            axes.text(left - _LABEL_GAP, top + (number + 0.5) * _CELL, piece, ha="right", va="center_baseline", **style)
        for number, piece in enumerate(columns):
            axes.text(left + (number + 0.5) * _CELL, bottom + _LABEL_GAP, piece, ha="center", va="top", rotation=90, **style)
    scale_bottom = height - _HEADING - _TITLE - _SCALE_HEIGHT
    scale = figure.add_axes((scale_left / width, scale_bottom / height, _SCALE_WIDTH / width, _SCALE_HEIGHT / height))
    figure.colorbar(image, scale, ticks=_SCALE_LABELS, format="{x:g}").outline.set_edgecolor("0.8")
    scale.tick_params(length=0, labelsize=_POINTS)
    return figure


@silent_fonts()
def find_fonts(texts: Iterable[str]) -> Fonts:
    """Find installed fonts that together draw all characters of the texts."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    missing = {one for text in texts for one in text if unicodedata.category(one) != "Cf"}
    families = []
    for family in dict.fromkeys([_FONT, *(font.name for font in fontManager.ttflist)]):
        # Check the file that will be used: another file of the family, for example a bold one, may have other characters. (A name in a
        # list is taken literally; a plain string may be a pattern.)
        drawn = missing & _drawn_by(findfont(FontProperties(family=[family])))
        if family == _FONT or (drawn and not family.startswith(_DRAWS_BOXES)):
            families.append(family)
            missing -= drawn
        if not missing:
            break
    return Fonts(families, "".join(sorted(missing)))


def _sentences(maps: AttentionMaps, kind: Kind, width: float) -> str:
    """Return the sentences whose pieces are on the map, source and output, a line each, cut to the width in pixels."""
    shown = {"encoder": [maps.source], "decoder": [maps.predicted], "cross": [maps.source, maps.predicted]}[kind]
    texts = ("".join(pieces[:-1]).replace(SPACE_MARK, " ").strip() for pieces in shown)
    return "\n".join(shortened(text, int((width - 2 * _MARGIN) / _LETTER)) for text in texts)


def save_png(figure: Figure, path: Path) -> None:
    """Write the figure atomically as a PNG file."""
    with new_file(path) as temporary, silent_fonts():
        figure.savefig(temporary, format="png")


def _drawn_by(file: str) -> set[str]:
    from matplotlib.font_manager import get_font

    try:
        return {chr(code) for code in get_font(file).get_charmap()}
    except (OSError, RuntimeError):  # matplotlib caches its list of fonts: a file may have been removed or replaced.
        return set()


def _style(fonts: Fonts) -> dict[str, Any]:
    # A "$" in a piece does not start mathematics.
    return {"parse_math": False, "fontfamily": fonts.families, "fontsize": _POINTS}


@silent_fonts()
def _label_width(labels: Iterable[str], fonts: Fonts) -> float:
    """Return the width of the longest label in pixels, with a gap at both ends."""
    from matplotlib.figure import Figure

    figure = Figure(dpi=DOTS_PER_INCH)
    longest: float = max(figure.text(0, 0, label, **_style(fonts)).get_window_extent().width for label in set(labels))
    return 2 * _LABEL_GAP + longest
