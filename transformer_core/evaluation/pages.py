"""What the HTML pages share: templates, formats of numbers and texts, and the comparison of two texts word by word.

All text from the data is escaped by the templates. The same content gives the same bytes.
"""

from difflib import SequenceMatcher
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_PACKAGE = "transformer_core.evaluation"


def page(template: str, package: str = _PACKAGE, **content: Any) -> str:
    """Return a template, of this package or of another, filled with its content."""
    return _environment(package).get_template(template).render(differences=differences, **content)


@cache
def _environment(package: str) -> Environment:
    templates = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.loader = ChoiceLoader([PackageLoader(package), PackageLoader(_PACKAGE)])
    templates.filters.update(grouped="{:,.0f}".format, duration=duration, setting=setting)
    return templates


def differences(text: str, other: str) -> list[tuple[str, bool]]:
    """Split a text into runs, each with True if `other` differs there; the runs concatenated are the text.

    The units are words, or characters if neither text has a space, as in Chinese.
    """
    space = " " if " " in text + other else ""
    units, others = (side.split(" ") if space else list(side) for side in (text, other))
    blocks = SequenceMatcher(a=units, b=others, autojunk=False).get_opcodes()
    runs = [(space.join(units[start:end]), kind != "equal") for kind, start, end, _, _ in blocks if end > start]
    return [part for run in runs for part in ((space, False), run)][1:]


def duration(seconds: float) -> str:
    """Format a duration: 4.2 s, 4 min 10 s, 1 h 02 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def setting(value: Any) -> str:
    """Format a value as in params.yaml; "none" for None and an empty list."""
    if value is None or value == []:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
