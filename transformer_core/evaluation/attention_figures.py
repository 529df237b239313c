"""Attention in one sentence as small figures, as in the paper's Figures 3 to 5: one figure per head, and one for all heads of a word."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from statistics import median_low
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformer_core.corpus.tokens.subword import SPACE_MARK
from transformer_core.evaluation.figures import CARD, FIRST, INK, MUTED, Canvas, as_svg, as_svg_file, gid
from transformer_core.evaluation.words import Word, by_word, words_of

if TYPE_CHECKING:
    from transformer_core.evaluation.attention import AttentionMaps, Kind

# Numbers of pieces of a sentence, end token included: the range of lengths to choose, and the limit of a readable figure.
FEW_PIECES, MANY_PIECES, MOST_PIECES = 8, 20, 24
LEVELS = 12  # Number of opacities of a stroke.
# Lengths are in pixels of the page, widths of texts in columns (`columns_of`): first for figures of heads, then for the figure of a word.
_EDGE, _TEXT, _COLUMN, _LEAST_COLUMNS, _MOST_COLUMNS = 3, 9.5, 6, 5, 10
_BETWEEN, _LINE_HEIGHT, _LINE, _CELL = 56, 13, 1.5, 12
_WORD_EDGE, _WORD_TEXT, _WORD_COLUMN, _LEAST_WORD_COLUMNS, _MOST_WORD_COLUMNS = 8, 13, 7.8, 6, 20
_WORD_BETWEEN, _WORD_HEIGHT, _HEADING = 210, 22, 46
_SPREAD, _MOST_STEP = 14, 3.2  # Largest distance between the lines of the first and the last head, and of neighbouring heads.
_KEY_WIDTH, _KEY_HEIGHT = 78, 20
# Relative luminances (WCAG 2) that the heads' colours alternate between; both have a contrast of 3 to a white and to a dark page.
_LUMINANCES = (0.17, 0.28)
_AS_THEY_ARE = frozenset({"<unk>", "<s>", "</s>", SPACE_MARK})


class HeadFigure(NamedTuple):
    """One head: a description of its attention, and its figure."""

    head: int
    in_words: str
    svg: str


class LayerFigures(NamedTuple):
    """The heads of a layer; layers and heads count from 1, as in the paper."""

    kind: Kind
    layer: int
    layers: int
    heads: list[HeadFigure]


class WordFigure(NamedTuple):
    """Attention of one word in a layer, all heads in one figure."""

    word: str
    layer: int
    layers: int
    svg: str


def choose_sentence(lengths: Sequence[tuple[int, int]]) -> int | None:
    """Choose the sentence to show: the first whose number of source pieces is nearest to the median, which is limited to 8..20.

    Args:
        lengths: numbers of pieces of each source and of its translation, end tokens included.

    Returns:
        The sentence's index, or None if no sentence has from 2 to 24 pieces on both sides.
    """
    fitting = [place for place, pair in enumerate(lengths) if all(2 <= length <= MOST_PIECES for length in pair)]
    if not fitting:
        return None
    wanted = min(max(median_low(source for source, _ in lengths), FEW_PIECES), MANY_PIECES)
    return min(fitting, key=lambda place: abs(lengths[place][0] - wanted))


def shown_layer(layers: int) -> int:
    """Return the encoder's layer to show, from 1: the last but one, as the paper shows 5 of 6."""
    return max(1, layers - 1)


def encoder_figures(maps: AttentionMaps) -> LayerFigures:
    """Draw self-attention of the encoder's last layer but one, as lines from each piece to the pieces that it attends to."""
    pieces = [readable(piece) for piece in maps.source]
    left = _label_width(pieces)
    right, heights = left + _BETWEEN, _EDGE + _LINE_HEIGHT * (np.arange(len(pieces)) + 0.5)
    layers, heads = maps.weights["encoder"].shape[:2]
    layer = shown_layer(layers)

    def figure(head: int) -> HeadFigure:
        weights = _finite(maps, "encoder", layer, head)
        canvas = Canvas(left + right, _LINE_HEIGHT * len(pieces) + 2 * _EDGE)
        _strokes(canvas, weights, (left, heights[:, None]), (right, heights), _LINE)
        for x, align in ((left - _EDGE, "right"), (right + _EDGE, "left")):
            for piece, height in zip(pieces, heights, strict=True):
                canvas.write(x, height, piece, _TEXT, align)
        return _head_figure(layer, head, _description(weights, pieces), canvas, left + right)

    return LayerFigures("encoder", layer, layers, [figure(head) for head in range(1, heads + 1)])


def cross_figures(maps: AttentionMaps) -> list[LayerFigures]:
    """Draw attention to the source in the decoder's last two layers, the last first, as heat maps with a row per predicted piece."""
    layers, heads = maps.weights["cross"].shape[:2]
    rows, columns = [readable(piece) for piece in maps.rows("cross")], [readable(piece) for piece in maps.columns("cross")]
    left, top = _label_width(rows), _label_width(columns)
    across, down = left + _CELL * np.arange(len(columns)), top + _CELL * (np.arange(len(rows)) + 0.5)

    def figure(layer: int, head: int) -> HeadFigure:
        weights = _finite(maps, "cross", layer, head)
        width = left + _CELL * len(columns) + _EDGE
        canvas = Canvas(width, top + _CELL * len(rows) + _EDGE)
        _strokes(canvas, weights, (across, down[:, None]), (across + _CELL, down[:, None]), _CELL)
        for piece, height in zip(rows, down, strict=True):
            canvas.write(left - _EDGE, height, piece, _TEXT, "right")
        for piece, place in zip(columns, across + _CELL / 2, strict=True):
            canvas.write(place, top - _EDGE, piece, _TEXT, "left", rotation=90, rotation_mode="anchor")
        return _head_figure(layer, head, _strongest(weights, rows, columns), canvas, width)

    shown = range(layers, max(0, layers - 2), -1)
    return [LayerFigures("cross", layer, layers, [figure(layer, head) for head in range(1, heads + 1)]) for layer in shown]


def encoder_words(maps: AttentionMaps, layer: int) -> tuple[list[Word], NDArray[np.float64]]:
    """Return the source's words and the encoder's self-attention between them in a layer, (H, W, W)."""
    words = words_of(maps.source)
    return words, by_word(maps.weights["encoder"][layer - 1], words)


def word_figure(maps: AttentionMaps, place: int, layer: int, heads: Sequence[int] | None = None, alone: bool = False) -> WordFigure:
    """Draw a word's attention to all words of the source, itself included, in the encoder's self-attention (the paper's Figure 4).

    Args:
        maps: the attention weights.
        place: index of the word among the source's words.
        layer: layer, from 1.
        heads: heads, from 1; None is all. A head's colour does not depend on the selection.
        alone: return a self-contained SVG file with a heading, instead of an element of a page.
    """
    layers, count = maps.weights["encoder"].shape[:2]
    heads = heads or range(1, count + 1)
    words, weights = encoder_words(maps, layer)
    texts = [shortened(word.text, _MOST_WORD_COLUMNS) for word in words]
    # Bold capitals are wider than other letters.
    columns = [columns_of(text) + 0.5 * sum(one.isupper() for one in text) for text in texts]
    left = _WORD_COLUMN * max(_LEAST_WORD_COLUMNS, *columns) + 2 * _WORD_EDGE
    right, width = left + _WORD_BETWEEN, 2 * left + _WORD_BETWEEN
    top = _WORD_EDGE + (_HEADING if alone else 0)
    heights = top + _WORD_HEIGHT * (np.arange(len(texts)) + 0.5)
    key = top + _WORD_HEIGHT * len(texts) + _WORD_EDGE
    across = max(1, min(len(heads), int((width - 2 * _WORD_EDGE) // _KEY_WIDTH)))
    canvas = Canvas(width, key + _KEY_HEIGHT * -(-len(heads) // across) + _WORD_EDGE, CARD if alone else None)

    step = min(_MOST_STEP, _SPREAD / max(1, len(heads) - 1))
    for number, head in enumerate(heads):
        colour, shift = head_colour(head, count), step * (number - (len(heads) - 1) / 2)
        for text, height, weight in zip(texts, heights, weights[head - 1, place].tolist(), strict=True):
            if strength := opacity(weight):
                hover = gid(hover=f"head {head}: {isolated(texts[place])} ← {isolated(text)}, {weight:.2f}")
                ends = (left, right), (heights[place] + shift, height + shift)
                canvas.line(*ends, colour, 0.9 * step, strength, hover)
        x = (width - across * _KEY_WIDTH) / 2 + _KEY_WIDTH * (number % across)
        y = key + _KEY_HEIGHT * (number // across + 0.5)
        canvas.line((x, x + 16), (y, y), colour, 4)
        canvas.write(x + 21, y, f"head {head}", _WORD_TEXT, "left", colour=MUTED)
    for row, (text, height) in enumerate(zip(texts, heights, strict=True)):
        chosen: dict[str, str] = {"colour": INK, "weight": "bold", "gid": gid("chosen")} if row == place else {"colour": MUTED}
        canvas.write(left - _EDGE, height, text, _WORD_TEXT, "right", **chosen)
    for text, height in zip(texts, heights, strict=True):
        canvas.write(right + _EDGE, height, text, _WORD_TEXT, "left")
    if not alone:
        what = f"What “{words[place].text}” attends to in layer {layer}"
        return WordFigure(words[place].text, layer, layers, as_svg(canvas.figure, what, _at_most(width)))
    where = f"encoder self-attention, layer {layer} of {layers}"
    canvas.write(width / 2, 16, f"What “{texts[place]}” attends to", _WORD_TEXT, weight="bold")
    canvas.write(width / 2, 34, where, _WORD_TEXT, colour=MUTED)
    return WordFigure(words[place].text, layer, layers, as_svg_file(canvas.figure, f"What “{words[place].text}” attends to: {where}"))


def head_colour(head: int, heads: int) -> str:
    """Return the colour of a head as #rrggbb: hues are evenly spaced, and visible on a white and on a dark page."""
    wanted = _LUMINANCES[head % len(_LUMINANCES)]
    rgb = np.array(colorsys.hsv_to_rgb((head - 1) / heads, 0.9, 1)) ** 2.2  # Approximates sRGB's transfer function.
    luminance = rgb @ (0.2126, 0.7152, 0.0722)
    rgb = rgb * wanted / luminance if luminance > wanted else 1 - (1 - rgb) * (1 - wanted) / (1 - luminance)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb ** (1 / 2.2))


def readable(piece: str, most: int = _MOST_COLUMNS) -> str:
    """Format a piece: the beginning of a word without SentencePiece's mark, any other piece with a dot before it, cut to `most` columns."""
    if piece in _AS_THEY_ARE:
        return piece
    return shortened(piece[1:], most) if piece.startswith(SPACE_MARK) else f"·{shortened(piece, most)}"


def shortened(text: str, most: int) -> str:
    """Shorten a text to at most `most` columns, with an ellipsis."""
    if columns_of(text) <= most:
        return text
    return next(text[:end] for end in range(most, 0, -1) if columns_of(text[:end]) < most) + "…"


def columns_of(text: str) -> int:
    """Return the width of a text in columns; a wide character, for example a Chinese one, takes two."""
    return sum(2 if east_asian_width(one) in "WF" else 1 for one in text)


def opacity(weight: float) -> float:
    """Return the opacity of a weight, from 0 to 1 in twelve steps; small weights are raised, so that 1/20 is visible."""
    return float(_levels(np.asarray(weight))) / LEVELS


def isolated(text: str) -> str:
    """Wrap a text in bidirectional isolates, so that right-to-left letters do not reorder the text beside them."""
    return f"\N{FIRST STRONG ISOLATE}{text}\N{POP DIRECTIONAL ISOLATE}"


def _label_width(labels: Sequence[str]) -> int:
    """Return the width of the longest label in pixels, with a gap at both ends."""
    return _COLUMN * max(_LEAST_COLUMNS, *map(columns_of, labels)) + 2 * _EDGE


def _finite(maps: AttentionMaps, kind: Kind, layer: int, head: int) -> NDArray[np.float32]:
    """Return the weights of a head, with NaN (for example after a training that diverged) replaced by 0."""
    return np.nan_to_num(maps.of(kind, layer, head)).clip(0, 1)


def _levels(weights: NDArray[np.floating]) -> NDArray[np.int64]:
    return np.asarray(np.rint(LEVELS * weights.clip(0, 1) ** 0.7), dtype=np.int64)


def _strokes(
    canvas: Canvas, weights: NDArray[np.float32], start: tuple[ArrayLike, ArrayLike], end: tuple[ArrayLike, ArrayLike], width: float
) -> None:
    """Draw a stroke for each weight, (rows, columns), with the weight's opacity; strokes of the same opacity are one path.

    `start` and `end` have x and y of the strokes' ends, each broadcastable to the shape of `weights`; `width` is in pixels.
    """
    ends = np.full((2, *weights.shape, 3), np.nan)  # The third point of each stroke stays NaN: a gap.
    for place, point in enumerate((start, end)):
        for axis, values in enumerate(point):
            ends[axis, ..., place] = values
    levels = _levels(weights)
    for level in np.unique(levels[levels > 0]).tolist():
        x, y = ends[:, levels == level].reshape(2, -1)
        canvas.line(x, y, FIRST, width, level / LEVELS)


def _head_figure(layer: int, head: int, in_words: str, canvas: Canvas, width: float) -> HeadFigure:
    return HeadFigure(head, in_words, as_svg(canvas.figure, f"Layer {layer}, head {head}: {in_words}", _at_most(width)))


def _at_most(width: float) -> str:
    return f"max-width: {1.2 * width:.0f}px"


def _description(weights: NDArray[np.float32], pieces: Sequence[str]) -> str:
    """Describe a head by the relative position with at least a third of its attention over all rows, else by its largest weight."""
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
    return f"strongest: {isolated(rows[row])} ← {isolated(columns[column])}, {weights[row, column]:.2f}"
