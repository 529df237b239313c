"""Drawings of phrase-structure trees: words in a row at the bottom, each constituent above the middle of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transformer_core.parsing.trees import Tree, events
from transformer_core.pictures.drawing import INK, MUTED, RULE, SECOND, columns_of, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Pixels: approximate widths of a letter and of a bold capital, gap between words, distance of rows, margin. Points of labels.
_LETTER, _CAPITAL, _GAP, _ROW, _MARGIN = 8.0, 10.0, 12.0, 36.0, 26.0
_POINTS, _TAG_POINTS = 9, 7


def tree_figure(tree: Tree, marked: Sequence[bool]) -> Figure:
    """Draw a tree; `marked` has for each constituent, in the order in which they end, whether its label has another colour."""
    marks = iter(marked)
    widths, deepest = _layout(tree)
    bottom = _ROW * deepest
    width = 2 * _MARGIN - _GAP + sum(width + _GAP for width in widths)
    height = bottom + 2 * _MARGIN
    figure = new_figure(width, height)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height - _MARGIN, -_MARGIN))
    axes.axis("off")
    style: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False}
    stack: list[list[tuple[float, float]]] = [[]]  # For each open constituent the positions of its parts.
    right, of_words = _MARGIN, iter(widths)
    for kind, node in events(tree):
        if kind == "open":
            stack.append([])
            continue
        if kind == "word":
            wide = next(of_words)
            x, y = right + wide / 2, bottom
            axes.text(x, y, node.label, fontsize=_TAG_POINTS, color=MUTED, **style)
            axes.text(x, y + _ROW / 2, node.word, fontsize=_POINTS, color=INK, **style)
            right += wide + _GAP
        else:
            parts = stack.pop()
            x, y = (parts[0][0] + parts[-1][0]) / 2, _ROW * (len(stack) - 1)
            for part_x, part_y in parts:
                axes.plot((x, part_x), (y + 7, part_y), color=RULE, linewidth=1.2)
            axes.text(x, y, node.label, fontsize=_POINTS, weight="bold", color=SECOND if next(marks) else INK, **style)
        stack[-1].append((x, y - 8))
    return figure


def _layout(tree: Tree) -> tuple[list[float], int]:
    """Return the width of each word, with the labels above it that have no other word, and the greatest number of labels above one."""
    widths: list[float] = []
    starts: list[int] = []
    deepest = 0
    for kind, node in events(tree):
        if kind == "word":
            widths.append(_LETTER * max(columns_of(node.word), columns_of(node.label)))
        elif kind == "open":
            starts.append(len(widths))
            deepest = max(deepest, len(starts))
        elif starts.pop() == len(widths) - 1:
            widths[-1] = max(widths[-1], _CAPITAL * columns_of(node.label))
    return widths, deepest
