"""The texts of jobs, as templates of Jinja."""

import json
import shlex
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined


def render(name: str, values: dict[str, Any]) -> str:
    """Return a template with its values; a missing value is an error."""
    text = resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False)
    environment.filters |= {"shell": shlex.quote, "json": json.dumps}
    return environment.from_string(text).render(values)
