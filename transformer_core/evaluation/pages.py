"""How the templates beside this module are filled: text from the data is escaped, a name that is missing is an error."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def environment() -> Environment:
    """Templates for HTML and SVG."""
    return Environment(
        loader=PackageLoader("transformer_core.evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
