"""What one word attends to, as lines from a column of words to the same words again, a colour for each head: the paper's Figure 4.

Only numbers are made here; the templates draw them, in the report's page and as a file of its own.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from transformer_core.evaluation.attention_figures import apart, columns_of, cut, opacity, shown_layer
from transformer_core.evaluation.pages import environment
from transformer_core.evaluation.words import Word, by_word, words_of

if TYPE_CHECKING:
    from transformer_core.evaluation.attention import AttentionMaps

# Units of a figure; on the page one is about a pixel.
_LINE_HEIGHT, _BETWEEN, _EDGE, _GAP = 22.0, 210.0, 8.0, 6.0
_COLUMN, _CAPITAL, _MOST_COLUMNS, _LEAST_COLUMNS = 7.8, 1.5, 20, 6
_SPREAD, _MOST_STEP = 14.0, 3.2  # From the first head's line to the last's, and from one to the next.
_KEY_WIDTH, _KEY_HEIGHT = 78.0, 20.0
# Relative luminances of the colours in turn: each has a contrast of 3 to a white page and to a dark one.
_LUMINANCES = (0.17, 0.28)


@dataclass(frozen=True)
class Place:
    """A word at a line's end: where, what, and whether it is the word that is looked at."""

    x: float
    y: float
    text: str
    chosen: bool = False


@dataclass(frozen=True)
class Line:
    """From the word to what it attends to, as strong as the weight; `in_words` says both."""

    from_y: float
    to_y: float
    opacity: float
    in_words: str


@dataclass(frozen=True)
class Head:
    """A head's lines, its colour, and the place of its name in the key. Heads count from 1, as in the paper."""

    head: int
    colour: str
    lines: list[Line]
    key_x: float
    key_y: float


@dataclass(frozen=True)
class WordFigure:
    """The figure, in units: lines go from `left` to `right` and are `stroke` wide; words stand outside of them.

    Attributes:
        word: the word that is looked at.
        shown: the same, cut where it is long, as all words in the figure are.
    """

    word: str
    shown: str
    layer: int
    layers: int
    heads: list[Head]
    attending: list[Place]
    attended: list[Place]
    left: float
    right: float
    stroke: float
    width: float
    height: float


def encoder_words(maps: AttentionMaps, layer: int) -> tuple[list[Word], NDArray[np.float64]]:
    """The source's words and the encoder's self-attention between them in a layer, (H, W, W)."""
    words = words_of(maps.source)
    return words, by_word(maps.weights["encoder"][layer - 1], words)


def word_figure(maps: AttentionMaps, place: int, layer: int | None = None, heads: Sequence[int] | None = None) -> WordFigure:
    """Lines from a word of the source to all of its words, itself among them, in the encoder's self-attention.

    Args:
        place: of the word among the source's words, from 0.
        layer: from 1; the last but one where none is named, as the paper shows 5 of 6.
        heads: from 1; all where none are named. A head keeps its colour whichever are shown.
    """
    layers, count = maps.weights["encoder"].shape[:2]
    layer = layer or shown_layer(layers)
    chosen = list(heads or range(1, count + 1))
    words, weights = encoder_words(maps, layer)
    texts = [cut(word.text, _MOST_COLUMNS) for word in words]
    room = _COLUMN * max(_LEAST_COLUMNS, *map(_columns, texts)) + 2 * _EDGE
    left, right, width = room, room + _BETWEEN, 2 * room + _BETWEEN
    heights = [_EDGE + _LINE_HEIGHT * (row + 0.5) for row in range(len(texts))]
    step = min(_MOST_STEP, _SPREAD / max(1, len(chosen) - 1))
    key = _key(len(chosen), width, _LINE_HEIGHT * len(texts) + 2 * _EDGE)

    def drawn(number: int) -> Head:
        head, shift = chosen[number], step * (number - (len(chosen) - 1) / 2)
        row = weights[head - 1, place].tolist()
        lines = [
            Line(
                heights[place] + shift, height + shift, opacity(weight), f"head {head}: {apart(texts[place])} ← {apart(text)}, {weight:.2f}"
            )
            for text, height, weight in zip(texts, heights, row, strict=True)
            if opacity(weight) > 0
        ]
        return Head(head, head_colour(head, count), lines, *key[number])

    return WordFigure(
        word=words[place].text,
        shown=texts[place],
        layer=layer,
        layers=layers,
        heads=[drawn(number) for number in range(len(chosen))],
        attending=[Place(left - _GAP, y, text, row == place) for row, (y, text) in enumerate(zip(heights, texts, strict=True))],
        attended=[Place(right + _GAP, y, text) for y, text in zip(heights, texts, strict=True)],
        left=left,
        right=right,
        stroke=0.9 * step,
        width=width,
        height=key[-1][1] + _KEY_HEIGHT / 2 + _EDGE,
    )


def as_svg(figure: WordFigure) -> str:
    """The figure as a file of its own, which needs no other, for a light and for a dark screen."""
    return environment().get_template("word.svg").render(figure=figure)


def head_colour(head: int, heads: int) -> str:
    """A colour for a head of so many, as #rrggbb: their hues are even steps apart, and seen on a white page and on a dark one."""
    wanted = _LUMINANCES[head % len(_LUMINANCES)]
    low, high = 0.0, 1.0
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if _luminance(_rgb(head, heads, middle)) < wanted else (low, middle)
    return "#" + "".join(f"{round(255 * part):02x}" for part in _rgb(head, heads, low))


def _columns(text: str) -> float:
    """As `columns_of`, with room for capitals in bold."""
    return columns_of(text) + (_CAPITAL - 1) * sum(one.isupper() for one in text)


def _rgb(head: int, heads: int, lightness: float) -> tuple[float, float, float]:
    return colorsys.hls_to_rgb((head - 1) / heads, lightness, 0.75)


def _luminance(rgb: tuple[float, float, float]) -> float:
    """Relative luminance of sRGB from 0 to 1, as WCAG defines it for contrasts."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _key(count: int, width: float, top: float) -> list[tuple[float, float]]:
    """Places for the names of so many heads, in rows below the words, each row as wide as the figure lets it be."""
    across = max(1, min(count, int((width - 2 * _EDGE) // _KEY_WIDTH)))
    start = (width - across * _KEY_WIDTH) / 2
    return [(start + _KEY_WIDTH * (number % across), top + _KEY_HEIGHT * (number // across + 0.5)) for number in range(count)]
