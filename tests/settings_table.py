"""The tables of docs/settings.md, from the schema and the default recipe. `python -m tests.settings_table` writes them."""

import re
from collections.abc import Iterable
from dataclasses import fields

from tests.clone import ROOT
from transformer_core import recipes
from transformer_core.config import Model, Params
from transformer_core.files import write_text
from transformer_core.sizes import architectures
from transformer_core.yaml_io import parse_yaml, yaml_text

PAGE = ROOT / "docs" / "settings.md"
_TABLE = re.compile(r"(?<=^## )(\w+)\n(.*?)^\w+ \| .*?\n(?=\n|\Z)", re.DOTALL | re.MULTILINE)


def with_tables(page: str) -> str:
    """The text of the page with the tables as they should be."""
    return _TABLE.sub(lambda table: f"{table[1]}\n{table[2]}{_table(table[1])}", page)


def _table(section: str) -> str:
    if section == "model":
        return _table_of_models()
    settings = parse_yaml(recipes.read(recipes.DEFAULT), recipes.DEFAULT)[section]
    schema = Params.model_fields[section].annotation
    assert schema is not None
    rows = ["setting | meaning", "---|---"]
    for key, found in schema.model_fields.items():
        rows.append(f"`{yaml_text({key: settings[key]}).strip()}` | {found.json_schema_extra['words']}")
    return "".join(f"{row}\n" for row in rows)


def _table_of_models() -> str:
    alike: dict[str, list[str]] = {}
    for name, entry in architectures().items():
        alike.setdefault(_quoted(entry.presets), []).append(name)
    presets = "; ".join(f"of {', '.join(names)} {quoted}" for quoted, names in alike.items())
    meanings = {
        "architecture": f"{_quoted(architectures())}; the first if it is not set",
        "preset": f"sizes that the other keys override: {presets}; of transformer also the rows of Table 3, as `table3/A-h1`",
    }
    rows = ["key | architecture | meaning", "---|---|---"]
    for key in Model.model_fields:
        owners = [(name, found) for name, entry in architectures().items() for found in fields(entry.size) if found.name == key]
        meaning = meanings.get(key) or owners[0][1].metadata["words"]
        of_all = not owners or len(owners) == len(architectures())
        # A model with the keys of another has not them in its own class.
        names = ["all"] if of_all else [name for name, _ in owners if key in architectures()[name].size.__annotations__]
        rows.append(f"`{key}` | {', '.join(names)} | {meaning}")
    return "".join(f"{row}\n" for row in rows)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names if "/" not in name)


if __name__ == "__main__":
    write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))
