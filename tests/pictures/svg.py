"""Pictures of a page taken apart."""

import re
from base64 import b64decode
from html import unescape
from xml.etree import ElementTree


def pictures_of(html: str) -> list[tuple[str, list[str]]]:
    """Return the description of each picture and all texts in it, in order; fails if its SVG is not well-formed."""
    found = re.findall(r'<img src="data:image/svg\+xml;base64,([\w+/=]+)" alt="([^"<>]+)">', html)
    assert len(found) == html.count("<img")
    roots = [(unescape(alt), ElementTree.fromstring(b64decode(file))) for file, alt in found]
    return [(alt, [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]) for alt, root in roots]
