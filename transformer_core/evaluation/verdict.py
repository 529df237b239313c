"""The verdict on a model at the top of its report. Stage publish alone knows it, after the report was written."""

from html import escape

# What the report says in its place.
PLACE = '<p class="muted">Champion or not: the last line of stage publish says it, and so does the copy of this page in MLflow.</p>'


def with_verdict(page: str, address: str, alias: str, reason: str) -> str:
    """Return the report with the verdict in place of `PLACE`.

    Args:
        page: the report.
        address: name of the version in the registry, such as "multi30k-en-de@champion".
        alias: the version's alias; empty for none.
        reason: why, with the difference to the best version before and its p-value.
    """
    title, style = (alias.capitalize(), "won") if alias else ("No alias", "lost")
    said = f'<p class="verdict {style}"><strong>{escape(title)}</strong> {escape(address)}: {escape(reason)}.</p>'
    return page.replace(PLACE, said, 1)
