"""What all pictures share: figures without pyplot's global state, their files and HTML elements, and labels.

The same input gives the same bytes. matplotlib is imported only when needed, because that takes a second.
"""

import re
import unicodedata
import warnings
from base64 import b64encode
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_core.corpus.tokens.subword import SPACE_MARK
from transformer_core.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MUTED, RULE, FIRST, SECOND = "#5b6472", "#dfe1e6", "#1f5fbf", "#b4470b"
DOTS_PER_INCH = 100
_HASH_SALT = "transformer-core"  # Of the ids in an SVG file, which would otherwise be random.
_NOT_IN_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_SPECIAL = frozenset({"<unk>", "<s>", "</s>", SPACE_MARK})


def new_figure(width: float, height: float) -> "Figure":
    """Return a figure without axes, its width and height in pixels."""
    from matplotlib.figure import Figure

    return Figure((width / DOTS_PER_INCH, height / DOTS_PER_INCH), dpi=DOTS_PER_INCH)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as SVG, atomically."""
    write_text(path, _svg(figure))


def as_image(figure: "Figure", label: str) -> str:
    """Return a figure as an HTML element that holds it as SVG; `label` describes it."""
    return f'<img src="data:image/svg+xml;base64,{b64encode(_svg(figure).encode()).decode()}" alt="{escape(label)}">'


def _svg(figure: "Figure") -> str:
    """Return a figure as SVG; its texts stay texts, and what shows it chooses their fonts."""
    import matplotlib

    file = BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": _HASH_SALT}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(file, format="svg", metadata={"Date": None})
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", file.getvalue().decode())


def readable(piece: str) -> str:
    """Format a piece: the beginning of a word without SentencePiece's mark, any other piece with a dot before it."""
    if piece in _SPECIAL:
        return piece
    return piece[1:] if piece.startswith(SPACE_MARK) else f"·{piece}"


def columns_of(text: str) -> int:
    """Return the width of a text in columns; a wide character, for example a Chinese one, takes two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def shortened(text: str, most: int) -> str:
    """Shorten a text to at most `most` columns, with an ellipsis."""
    if columns_of(text) <= most:
        return text
    return next(text[:end] for end in range(most, 0, -1) if columns_of(text[:end]) < most) + "…"
