"""Figures by matplotlib, without pyplot's global state. The same input gives the same bytes; matplotlib is imported only when needed.

A figure of a page keeps its text as text, so the browser chooses fonts (for example for Chinese and right-to-left scripts), and the file
stays small. Its colours are CSS variables of the page, which defines them for light and for dark screens.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from transformer_core.files import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

# Colours for a light and for a dark screen, by the name of their CSS variable. Figures are drawn with the light ones.
COLOURS = {
    "card": ("#ffffff", "#1c2027"),
    "ink": ("#1d2129", "#e6e8ec"),
    "muted": ("#5b6472", "#a0a8b5"),
    "rule": ("#dfe1e6", "#343a45"),
    "first": ("#1f5fbf", "#7fb0ff"),
    "second": ("#b4470b", "#ffa469"),
}
CARD, INK, MUTED, RULE, FIRST, SECOND = (light for light, _ in COLOURS.values())
SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'

_NAMES = {light: name for name, (light, _) in COLOURS.items()}
_HASH_SALT = "transformer-core"
_SVG = "{http://www.w3.org/2000/svg}"
_POINTS_AN_INCH = 72


class Canvas:
    """A figure for lines and texts at positions in pixels from the upper left corner; transparent if no colour is given."""

    def __init__(self, width: float, height: float, colour: str | None = None) -> None:
        from matplotlib.transforms import Affine2D

        self.figure = blank(width, height, colour)
        self._pixels = Affine2D().scale(1, -1).translate(0, height)

    def line(self, x: ArrayLike, y: ArrayLike, colour: str, width: float, opacity: float = 1.0, gid: str = "") -> None:
        """Draw a line through points; NaN makes a gap."""
        from matplotlib.lines import Line2D

        style: dict[str, Any] = {"color": colour, "linewidth": width, "alpha": opacity, "solid_capstyle": "butt", "gid": gid}
        self.figure.add_artist(Line2D(x, y, transform=self._pixels, **style), clip=False)

    def write(self, x: float, y: float, text: str, size: float, align: str = "center", colour: str = INK, **style: Any) -> None:
        """Write a text, vertically centred at `y`. A "$" in the text does not start mathematics."""
        style = {"ha": align, "va": "center_baseline", "fontsize": size, "color": colour, "parse_math": False, **style}
        self.figure.text(x, y, text, transform=self._pixels, **style)


def blank(width: float, height: float, colour: str | None = None) -> Figure:
    """Return a figure without axes; width and height are in pixels of the page."""
    from matplotlib.figure import Figure

    return Figure((width / _POINTS_AN_INCH, height / _POINTS_AN_INCH), dpi=_POINTS_AN_INCH, frameon=colour is not None, facecolor=colour)


def gid(css_class: str = "", hover: str = "") -> str:
    """Return a matplotlib `gid` that gives an artist a CSS class and a tooltip."""
    return f"{css_class}|{hover}"


def as_svg(figure: Figure, label: str, style: str = "", title: str = "") -> str:
    """Return the figure as an SVG element of an HTML page. Only lines and texts are kept: no markers, images or clipping."""
    return _text_of(_element(figure, label, style, title))


def as_svg_file(figure: Figure, title: str) -> str:
    """Return the figure as the text of a self-contained SVG file, for light and dark screens."""
    element = _element(figure, title, "", title)
    width, height = element.attrib["viewBox"].split()[2:]
    element.attrib.update({"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height})
    light, dark = (" ".join(f"--{name}: {pair[place]};" for name, pair in COLOURS.items()) for place in (0, 1))
    style = ElementTree.Element("style")
    style.text = f"svg {{ {light} font-family: {SANS}; }} @media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }}"
    element.insert(1, style)
    return _text_of(element) + "\n"


def save_svg(figure: Figure, path: Path) -> None:
    """Write the figure atomically as a self-contained SVG file, with text as outlines."""
    import matplotlib

    with new_file(path) as temporary, matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": _HASH_SALT}):
        figure.savefig(temporary, format="svg", metadata={"Date": None})


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


def _element(figure: Figure, label: str, style: str, title: str) -> ElementTree.Element:
    import matplotlib

    file = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": _HASH_SALT}), silent_fonts():
        figure.savefig(file, format="svg", metadata={"Date": None})
    drawn = ElementTree.fromstring(_printable(file.getvalue()))
    element = ElementTree.Element("svg", {"viewBox": drawn.attrib["viewBox"], "role": "img", "aria-label": label})
    if style:
        element.set("style", style)
    if title:
        ElementTree.SubElement(element, "title").text = title
    for group in drawn.iter(f"{_SVG}g"):
        for part in group:
            if part.tag in (f"{_SVG}path", f"{_SVG}text"):
                element.append(_part(part, group.get("id", "")))
    return element


def _text_of(element: ElementTree.Element) -> str:
    return _printable(ElementTree.tostring(element, encoding="unicode"))


def _printable(text: str) -> str:
    """Replace each character that XML does not allow, such as a control character, by U+FFFD."""
    return re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _part(drawn: ElementTree.Element, group: str) -> ElementTree.Element:
    """Return a line or a text with short numbers, the page's colours and font, and the class and tooltip of its `gid`."""
    part = ElementTree.Element(drawn.tag.removeprefix(_SVG))
    for name in ("x", "y", "d", "transform"):
        value = re.sub(r"rotate\(-?0 [^)]*\)|(?<=[MLz ]) +| +(?=[MLz ])| $", "", drawn.get(name, ""))
        if value:
            part.set(name, re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value))
    style = re.sub(r"font-family: [^;]*(; |$)", "", drawn.get("style", ""))
    part.set("style", re.sub(r"#\w{6}", lambda colour: f"var(--{_NAMES[colour[0]]})" if colour[0] in _NAMES else colour[0], style))
    part.text = drawn.text if drawn.tag == f"{_SVG}text" else None
    css_class, bar, hover = group.partition("|")
    if bar and css_class:
        part.set("class", css_class)
    if bar and hover:
        ElementTree.SubElement(part, "title").text = hover
    return part
