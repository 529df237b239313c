"""Drawings of phrase-structure trees: words in a row at the bottom, each constituent above the middle of its parts."""

from transformer_core.corpus.trees import Tree, events
from transformer_core.evaluation.attention_figures import columns_of
from transformer_core.evaluation.brackets import counted, spans
from transformer_core.evaluation.figures import INK, MUTED, RULE, SECOND, Canvas, as_svg, gid

# Pixels: approximate width of a letter, gap between words, distance of rows, margins at top and bottom, margins at the sides. The latter
# leave room for a label such as WHADVP, which may be wider than the only word below it.
_LETTER, _GAP, _ROW, _MARGIN, _SIDE = 6.6, 10.0, 30.0, 12.0, 20.0
_TEXT, _TAG_TEXT = 11, 9


def tree_figure(tree: Tree, beside: Tree, title: str) -> str:
    """Draw a tree as SVG; constituents that count in the score but are not in `beside`, a tree over the same words, are marked."""
    known = spans(beside)
    depth = deepest = 0
    for kind, _ in events(tree):
        depth += {"open": 1, "word": 0, "close": -1}[kind]
        deepest = max(deepest, depth)
    bottom = _MARGIN + _ROW * deepest
    width = 2 * _SIDE - _GAP + sum(_width(node) + _GAP for kind, node in events(tree) if kind == "word")
    canvas = Canvas(width, bottom + _ROW / 2 + _MARGIN)
    # For each open constituent, the index of its first counted word and the positions of its parts.
    stack: list[tuple[int, list[tuple[float, float]]]] = [(0, [])]
    right, place = _SIDE, 0
    for kind, node in events(tree):
        if kind == "open":
            stack.append((place, []))
            continue
        if kind == "word":
            x, y = right + _width(node) / 2, bottom
            canvas.write(x, y, node.label, _TAG_TEXT, colour=MUTED)
            canvas.write(x, y + _ROW / 2, node.word, _TEXT)
            right += _width(node) + _GAP
            place += counted(node.label) is not None
        else:
            start, parts = stack.pop()
            x, y = (parts[0][0] + parts[-1][0]) / 2, _MARGIN + _ROW * (len(stack) - 1)
            for part_x, part_y in parts:
                canvas.line((x, part_x), (y + 6, part_y), RULE, 1.5)
            label = counted(node.label)
            differs = label is not None and start < place and (label, start, place) not in known
            canvas.write(x, y, node.label, _TEXT, weight="bold", colour=SECOND if differs else INK, gid=gid("differs" if differs else ""))
        stack[-1][1].append((x, y - 7))
    return as_svg(canvas.figure, title, f"width: {width:.0f}px")


def _width(word: Tree) -> float:
    return _LETTER * max(columns_of(word.word), columns_of(word.label))
