"""An SVG figure taken apart, for tests of what it shows."""

import re
from typing import NamedTuple
from xml.etree import ElementTree


class Text(NamedTuple):
    """A text, the point that it is anchored at, and its style and class."""

    text: str
    x: float
    y: float
    style: str
    name: str | None


class Path(NamedTuple):
    """A line: its points, as many for each of its strokes; its opacity, style, class and the text that shows under the mouse."""

    points: list[tuple[float, float]]
    opacity: float
    style: str
    name: str | None
    hover: str | None


class Drawn:
    """All texts and all lines of a figure, in order, and its size."""

    def __init__(self, svg: str) -> None:
        root = ElementTree.fromstring(svg.replace(' xmlns="http://www.w3.org/2000/svg"', ""))
        self.width, self.height = map(float, root.attrib["viewBox"].split()[2:])
        self.title = root.findtext("title")
        self.texts = [_text(element) for element in root.iter("text")]
        self.lines = [_path(element) for element in root.iter("path")]

    def words(self) -> list[str]:
        """All texts in order."""
        return [text.text for text in self.texts]


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def _text(element: ElementTree.Element) -> Text:
    return Text(element.text or "", float(element.attrib["x"]), float(element.attrib["y"]), element.attrib["style"], element.get("class"))


def _path(element: ElementTree.Element) -> Path:
    numbers, style = _numbers(element.attrib["d"]), element.attrib["style"]
    opacity = re.search(r"stroke-opacity: ([\d.]+)", style)
    points = list(zip(numbers[::2], numbers[1::2], strict=True))
    return Path(points, float(opacity[1]) if opacity else 1.0, style, element.get("class"), element.findtext("title"))
