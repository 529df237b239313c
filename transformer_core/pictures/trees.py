"""Drawings of phrase-structure trees: words in a row at the bottom, each constituent above the middle of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer_core.corpus.trees import Tree, events
from transformer_core.pictures.drawing import INK, MUTED, RULE, SECOND, columns_of, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Pixels: approximate width of a letter, gap between words, distance of rows, and the margin, which leaves room for a label such as WHADVP
# above a narrow word. Points of labels.
_LETTER, _GAP, _ROW, _MARGIN = 8.0, 12.0, 36.0, 24.0
_POINTS, _TAG_POINTS = 9, 7


def tree_figure(tree: Tree, marked: Sequence[bool]) -> Figure:
    """Draw a tree; `marked` has for each constituent, in the order in which they end, whether its label has another colour."""
    marks = iter(marked)
    depth = deepest = 0
    for kind, _ in events(tree):
        depth += {"open": 1, "word": 0, "close": -1}[kind]
        deepest = max(deepest, depth)
    bottom = _ROW * deepest
    width = 2 * _MARGIN - _GAP + sum(_width(node) + _GAP for kind, node in events(tree) if kind == "word")
    height = bottom + 2 * _MARGIN
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height - _MARGIN, -_MARGIN))
    axes.axis("off")
    style: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False}
    stack: list[list[tuple[float, float]]] = [[]]  # For each open constituent the positions of its parts.
    right = _MARGIN
    for kind, node in events(tree):
        if kind == "open":
            stack.append([])
            continue
        if kind == "word":
            x, y = right + _width(node) / 2, bottom
            axes.text(x, y, node.label, fontsize=_TAG_POINTS, color=MUTED, **style)
            axes.text(x, y + _ROW / 2, node.word, fontsize=_POINTS, color=INK, **style)
            right += _width(node) + _GAP
        else:
            parts = stack.pop()
            x, y = (parts[0][0] + parts[-1][0]) / 2, _ROW * (len(stack) - 1)
            for part_x, part_y in parts:
                axes.plot((x, part_x), (y + 7, part_y), color=RULE, linewidth=1.2)
            axes.text(x, y, node.label, fontsize=_POINTS, weight="bold", color=SECOND if next(marks) else INK, **style)
        stack[-1].append((x, y - 8))
    return figure


def _width(word: Tree) -> float:
    return _LETTER * max(columns_of(word.word), columns_of(word.label))
