"""What all pictures share: figures without pyplot's global state, their files and HTML elements, fonts and labels.

The same input gives the same bytes. matplotlib is imported only when needed, because that takes a second.
"""

from __future__ import annotations

import logging
import re
import unicodedata
import warnings
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from transformer_core.corpus.tokens.subword import SPACE_MARK
from transformer_core.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, RULE, FIRST, SECOND = "#1d2129", "#5b6472", "#dfe1e6", "#1f5fbf", "#b4470b"
DOTS_PER_INCH = 100
_HASH_SALT = "transformer-core"  # Of the ids in an SVG file, which would otherwise be random.
_NOT_IN_XML = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_SPECIAL = frozenset({"<unk>", "<s>", "</s>", SPACE_MARK})
_FONT, _DRAWS_BOXES = "DejaVu Sans", "Last Resort"  # Both are part of matplotlib; the latter draws placeholder boxes.


class Fonts(NamedTuple):
    """Font families that together draw a text, matplotlib's own first, and the characters that no installed font draws."""

    families: list[str]
    missing: str


def new_figure(width: float, height: float) -> Figure:
    """Return a figure without axes, its width and height in pixels."""
    from matplotlib.figure import Figure

    return Figure((width / DOTS_PER_INCH, height / DOTS_PER_INCH), dpi=DOTS_PER_INCH)


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format of the file's suffix: png or svg."""
    with new_file(path) as temporary, temporary.open("wb") as file:
        _write(figure, file, path.suffix[1:], "path")


def as_image(figure: Figure, label: str) -> str:
    """Return a figure as an HTML element that holds it as SVG; the browser chooses the fonts of its texts. `label` describes it."""
    file = BytesIO()
    _write(figure, file, "svg", "none")
    svg = _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", file.getvalue().decode())
    return f'<img src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}" alt="{escape(label)}">'


def _write(figure: Figure, file: IO[bytes], form: str, texts: str) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": texts, "svg.hashsalt": _HASH_SALT}), silent_fonts():
        figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)


@contextmanager
def silent_fonts() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters missing from a font and its log of weights missing from a family."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            yield
    finally:
        log.setLevel(level)


@silent_fonts()
def find_fonts(texts: Iterable[str]) -> Fonts:
    """Find installed fonts that together draw all characters of the texts."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    missing = {character for text in texts for character in text if unicodedata.category(character) != "Cf"}
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


def _drawn_by(file: str) -> set[str]:
    from matplotlib.font_manager import get_font

    try:
        return {chr(code) for code in get_font(file).get_charmap()}
    except (OSError, RuntimeError):  # matplotlib caches its list of fonts: a file may have been removed or replaced.
        return set()


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
