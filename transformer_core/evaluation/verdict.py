"""The verdict on a model at the top of its report. Only stage publish knows it, after the report has been written."""

from html import escape

# What the report says in its place.
VERDICT_PLACEHOLDER = (
    '<p class="muted">Stage publish decides whether this model becomes the champion. '
    "Its last line and the copy of this page in MLflow have the decision.</p>"
)


def with_verdict(page: str, address: str, alias: str, reason: str) -> str:
    """Return the report with the verdict in place of `VERDICT_PLACEHOLDER`.

    Args:
        page: the report.
        address: name of the version in the registry, such as "multi30k-en-de/1".
        alias: the version's alias; empty for none.
        reason: why, with the difference to the best version before and its p-value.
    """
    title, style = (alias.capitalize(), "won") if alias else ("No alias", "lost")
    said = f'<p class="verdict {style}"><strong>{escape(title)}</strong> {escape(address)}: {escape(reason)}.</p>'
    return page.replace(VERDICT_PLACEHOLDER, said, 1)
