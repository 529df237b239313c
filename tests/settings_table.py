"""The table of section `model` in docs/settings.md, from the schema. `python -m tests.settings_table` writes it."""

import re
from collections.abc import Iterable
from dataclasses import fields

from tests.clone import ROOT
from transformer_core.config import Model
from transformer_core.files import write_text
from transformer_core.sizes import architectures

PAGE = ROOT / "docs" / "settings.md"
_TABLE = re.compile(r"(?<=settings_table` -->\n).*(?=<!-- end -->)", re.DOTALL)


def with_table(page: str) -> str:
    """The text of the page with the table as it should be."""
    return _TABLE.sub(lambda _: _table(), page)


def _table() -> str:
    presets = "; ".join(f"of {name} {_quoted(entry.presets)}" for name, entry in architectures().items())
    meanings = {
        "architecture": f"{_quoted(architectures())}; the first if it is not set",
        "preset": f"name of the sizes that the other keys override: {presets}; of transformer also each row of Table 3, as `table3/A-h1`",
    }
    rows = ["| key | architecture | meaning |", "|---|---|---|"]
    for key in Model.model_fields:
        owners = [(name, found) for name, entry in architectures().items() for found in fields(entry.size) if found.name == key]
        meaning = meanings.get(key) or owners[0][1].metadata["words"]
        rows.append(f"| `{key}` | {owners[0][0] if len(owners) == 1 else 'all'} | {meaning} |")
    return "".join(f"{row}\n" for row in rows)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names if "/" not in name)


if __name__ == "__main__":
    write_text(PAGE, with_table(PAGE.read_text(encoding="utf-8")))
