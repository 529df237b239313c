"""Layout of a drawn phrase-structure tree: words in a row at the bottom, each constituent above the middle of its parts."""

from dataclasses import dataclass, field

from transformer_core.corpus.trees import Tree, events
from transformer_core.evaluation.brackets import counted, spans

# In units of the SVG: about the width of a letter, the gap between words, the distance of rows, the margin.
_LETTER, _GAP, _ROW, _MARGIN = 6.6, 10.0, 30.0, 12.0


@dataclass(frozen=True)
class Label:
    """A word, a tag or a constituent's label, by the middle of its text.

    Attributes:
        kind: word, tag or constituent.
        differs: a constituent that counts in the score and that the other tree does not have.
    """

    text: str
    x: float
    y: float
    kind: str
    differs: bool = False


@dataclass(frozen=True)
class Edge:
    """A line from a constituent down to one of its parts."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class TreeFigure:
    """A drawn tree; lengths are in units of its SVG."""

    width: float
    height: float
    labels: list[Label]
    edges: list[Edge]


@dataclass
class _Open:
    """A constituent while its parts are laid out: the first word that counts, and where its parts stand."""

    start: int
    parts: list[tuple[float, float]] = field(default_factory=list)


def tree_figure(tree: Tree, beside: Tree) -> TreeFigure:
    """Lay out a tree; constituents that `beside`, a tree over the same words, does not have are marked as different."""
    known, _ = spans(beside)
    bottom = _MARGIN + _ROW * _depth(tree)
    labels: list[Label] = []
    edges: list[Edge] = []
    stack: list[_Open] = [_Open(0)]
    right, place = _MARGIN, 0
    for kind, node in events(tree):
        if kind == "open":
            stack.append(_Open(place))
            continue
        if kind == "word":
            width = _LETTER * max(len(node.word), len(node.label))
            x, y = right + width / 2, bottom
            labels += [Label(node.label, x, y, "tag"), Label(node.word, x, y + _ROW / 2, "word")]
            right += width + _GAP
            place += counted(node.label) is not None
        else:
            done = stack.pop()
            x, y = (done.parts[0][0] + done.parts[-1][0]) / 2, _MARGIN + _ROW * (len(stack) - 1)
            edges += [Edge(x, y + 6, *part) for part in done.parts]
            label = counted(node.label)
            differs = label is not None and done.start < place and (label, done.start, place) not in known
            labels.append(Label(node.label, x, y, "constituent", differs))
        stack[-1].parts.append((x, y - 7))
    return TreeFigure(right - _GAP + _MARGIN, bottom + _ROW / 2 + _MARGIN, labels, edges)


def _depth(tree: Tree) -> int:
    """The most constituents above a word."""
    depth = deepest = 0
    for kind, _ in events(tree):
        depth += {"open": 1, "word": 0, "close": -1}[kind]
        deepest = max(deepest, depth)
    return deepest
