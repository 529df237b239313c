"""Attention in one sentence as small SVG figures, one a head: lines from piece to piece as in the paper's Figures 3 to 5, and heat maps.

Only numbers and paths are made here; the report's templates draw them in the page's own colours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import NDArray

from transformer_core.corpus.subword import SPACE_MARK

if TYPE_CHECKING:
    from transformer_core.evaluation.attention import AttentionMaps, Kind

# Pieces of a sentence, the end token counted: fewer than the first are no story, more than the last no readable figure.
FEW_PIECES, MANY_PIECES, MOST_PIECES = 8, 20, 24
# Units of a figure; on the page one is about a pixel.
_BETWEEN, _LINE_HEIGHT, _LINE, _CELL, _EDGE, _COLUMN = 56, 13, 1.5, 12, 3, 6
_MOST_COLUMNS, _LEAST_COLUMNS = 10, 5
_LEVELS = 12
_AS_THEY_ARE = frozenset({"<unk>", "<s>", "</s>", SPACE_MARK})


@dataclass(frozen=True)
class Label:
    """A piece beside or above a figure: place, text-anchor, and whether it reads upward."""

    x: float
    y: float
    text: str
    anchor: str
    upward: bool = False


@dataclass(frozen=True)
class Mark:
    """All strokes of one opacity, as the `d` of an SVG path."""

    opacity: float
    path: str


@dataclass(frozen=True)
class HeadFigure:
    """One head: what it does in words, and its figure in units."""

    head: int
    in_words: str
    width: float
    height: float
    labels: list[Label]
    marks: list[Mark]


@dataclass(frozen=True)
class LayerFigures:
    """The heads of a layer; both count from 1, as in the paper. The strokes are `stroke` units wide."""

    kind: Kind
    layer: int
    layers: int
    stroke: float
    heads: list[HeadFigure]


def choose_sentence(lengths: Sequence[tuple[int, int]]) -> int | None:
    """The sentence to look at: the first whose source has about as many pieces as the median source.

    "About" is the nearest there is, and the median is taken as 8 where it is lower and as 20 where it is higher.

    Args:
        lengths: pieces of each source and of its translation, end tokens counted.

    Returns:
        Its place, or None where no sentence has a translation and at most 24 pieces on both sides.
    """
    fitting = [place for place, pair in enumerate(lengths) if all(2 <= length <= MOST_PIECES for length in pair)]
    if not fitting:
        return None
    wanted = min(max(median_low(source for source, _ in lengths), FEW_PIECES), MANY_PIECES)
    return min(fitting, key=lambda place: abs(lengths[place][0] - wanted))


def shown_layer(layers: int) -> int:
    """The encoder's layer to look at, from 1: the last but one, as the paper shows 5 of 6."""
    return max(1, layers - 1)


def encoder_figures(maps: AttentionMaps) -> LayerFigures:
    """Self-attention of the encoder's last layer but one, as lines from the piece that attends to what it sees."""
    pieces = [readable(piece) for piece in maps.source]
    left = _room(pieces)
    right = left + _BETWEEN
    heights = [_EDGE + _LINE_HEIGHT * (row + 0.5) for row in range(len(pieces))]
    labels = [Label(left - _EDGE, y, piece, "end") for y, piece in zip(heights, pieces, strict=True)]
    labels += [Label(right + _EDGE, y, piece, "start") for y, piece in zip(heights, pieces, strict=True)]

    def line(row: int, column: int) -> str:
        return f"M{left} {heights[row]:g}L{right} {heights[column]:g}"

    def figure(head: int) -> HeadFigure:
        weights = _finite(maps, "encoder", layer, head)
        width, height = right + left, _LINE_HEIGHT * len(pieces) + 2 * _EDGE
        return HeadFigure(head, _habit(weights, pieces), width, height, labels, _marks(weights, line))

    layers, heads = maps.weights["encoder"].shape[:2]
    layer = shown_layer(layers)
    return LayerFigures("encoder", layer, layers, _LINE, [figure(head) for head in range(1, heads + 1)])


def cross_figures(maps: AttentionMaps) -> list[LayerFigures]:
    """What the decoder's last two layers attend to in the source, the last layer first, as heat maps: a row for a piece to be written."""
    layers = len(maps.weights["cross"])
    return [_heat_maps(maps, layer) for layer in range(layers, max(0, layers - 2), -1)]


def _heat_maps(maps: AttentionMaps, layer: int) -> LayerFigures:
    rows, columns = [readable(piece) for piece in maps.rows("cross")], [readable(piece) for piece in maps.columns("cross")]
    left, top = _room(rows), _room(columns)
    labels = [Label(left - _EDGE, top + _CELL * (row + 0.5), piece, "end") for row, piece in enumerate(rows)]
    labels += [Label(left + _CELL * (column + 0.5), top - _EDGE, piece, "start", upward=True) for column, piece in enumerate(columns)]

    def cell(row: int, column: int) -> str:
        return f"M{left + _CELL * column} {top + _CELL * row + _CELL // 2}h{_CELL}"

    def figure(head: int) -> HeadFigure:
        weights = _finite(maps, "cross", layer, head)
        width, height = left + _CELL * len(columns) + _EDGE, top + _CELL * len(rows) + _EDGE
        return HeadFigure(head, _strongest(weights, rows, columns), width, height, labels, _marks(weights, cell))

    layers, heads = maps.weights["cross"].shape[:2]
    return LayerFigures("cross", layer, layers, _CELL, [figure(head) for head in range(1, heads + 1)])


def _room(labels: Sequence[str]) -> int:
    """Units that the longest label takes, with a gap at both ends."""
    return round(_COLUMN * max(_LEAST_COLUMNS, *map(columns_of, labels))) + 2 * _EDGE


def readable(piece: str) -> str:
    """A piece as one reads it: its word's beginning without SentencePiece's mark, any other part with a dot before it; long ones cut."""
    if piece in _AS_THEY_ARE:
        return piece
    return cut(piece[1:], _MOST_COLUMNS) if piece.startswith(SPACE_MARK) else f"·{cut(piece, _MOST_COLUMNS)}"


def cut(text: str, most: int) -> str:
    """At most so many columns of text."""
    if columns_of(text) <= most:
        return text
    return next(text[:end] for end in range(most, 0, -1) if columns_of(text[:end]) < most) + "…"


def columns_of(text: str) -> int:
    """Width of a text in columns, of which a wide character, as Chinese has, takes two."""
    return sum(2 if east_asian_width(one) in "WF" else 1 for one in text)


def _finite(maps: AttentionMaps, kind: Kind, layer: int, head: int) -> NDArray[np.float32]:
    """The weights of a head; zero where they are no numbers, as those of a training that diverged are."""
    return np.nan_to_num(maps.of(kind, layer, head)).clip(0, 1)


def opacity(weight: float) -> float:
    """How strong a weight from 0 to 1 is drawn, in twelve steps; small ones are raised, or one of 1/20 would hardly be seen."""
    return float(_levels(np.asarray(weight))) / _LEVELS


def _levels(weights: NDArray[np.floating]) -> NDArray[np.int64]:
    return np.asarray(np.rint(_LEVELS * weights**0.7), dtype=np.int64)


def _marks(weights: NDArray[np.float32], stroke: Callable[[int, int], str]) -> list[Mark]:
    levels = _levels(weights)
    places = {level: np.argwhere(levels == level).tolist() for level in range(1, _LEVELS + 1)}
    return [Mark(level / _LEVELS, "".join(stroke(row, column) for row, column in found)) for level, found in places.items() if found]


def _habit(weights: NDArray[np.float32], pieces: Sequence[str]) -> str:
    """Where a third or more of a head's attention goes, all rows together; where there is no such place, its strongest weight."""
    count = len(weights)
    shares = {
        "on the piece itself": np.trace(weights) / count,
        "on the piece before": np.trace(weights, -1) / count,
        "on the piece after": np.trace(weights, 1) / count,
        "on the end": weights[:, -1].sum() / count,
    }
    where = max(shares, key=lambda name: shares[name])
    return f"{shares[where]:.0%} {where}" if shares[where] >= 1 / 3 else _strongest(weights, pieces, pieces)


def _strongest(weights: NDArray[np.float32], rows: Sequence[str], columns: Sequence[str]) -> str:
    row, column = divmod(int(weights.argmax()), len(columns))
    return f"strongest: {apart(rows[row])} ← {apart(columns[column])}, {weights[row, column]:.2f}"


def apart(text: str) -> str:
    """The text between marks that keep letters from right to left from turning round what stands beside them."""
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}"
