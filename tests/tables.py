"""The tables of docs/settings.md and the lists of docs/commands.md: from the schema, the parsers and the Makefile.

`python -m tests.tables` writes them.
"""

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules
from typing import NoReturn
from unittest.mock import patch

import flows
from tests.clone import ROOT
from transformer_core import cli, recipes
from transformer_core.config import Model, Params
from transformer_core.files import write_text
from transformer_core.sizes import architectures
from transformer_core.yaml_io import parse_yaml, yaml_text

PAGES = ("settings", "commands")
_TABLE = re.compile(r"(?<=^## )(\w+)\n(.*?)^\w+ \| .*?\n(?=\n|\Z)", re.DOTALL | re.MULTILINE)
_WRITTEN = re.compile(r"(?<=<!-- written from )(the \w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


class _Parsing(Exception):
    parser: argparse.ArgumentParser


def page(name: str) -> str:
    """The text of a page with its tables, or the parts between comments, as they should be."""
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    if name == "settings":
        return _TABLE.sub(lambda table: f"{table[1]}\n{table[2]}{_table(table[1])}", text)
    written = {
        "the Makefile": _targets,
        "the commands": lambda: _options([cli._parser()], "transformer-core "),
        "the flows": lambda: _options(_parsers_of_flows(), "python -m flows."),
    }
    return _WRITTEN.sub(lambda part: f"{part[1]}{part[2]}\n{written[part[1]]()}", text)


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


def _targets() -> str:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return _list(re.findall(r"^# (make [\w-]+)  +(?:[A-Z]+=\S+ )*(.*?)(?:[:;.] .*)?$", makefile, re.MULTILINE))


def _options(parsers: Iterable[argparse.ArgumentParser], program: str) -> str:
    commands = [command for parser in parsers for command in _commands(parser)]
    return _list((_heading(command).removeprefix(program), _meaning(command)) for command in commands)


def _parsers_of_flows() -> Iterator[argparse.ArgumentParser]:
    """The parser of each `python -m flows.NAME`: that with which its `main` begins to parse."""

    def stop(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        found = _Parsing()
        found.parser = parser
        raise found

    for module in iter_modules(flows.__path__):
        main = None if module.ispkg else getattr(import_module(f"flows.{module.name}"), "main", None)
        if main:
            with patch.multiple(argparse.ArgumentParser, parse_known_args=stop, parse_known_intermixed_args=stop):
                try:
                    main([])
                except _Parsing as found:
                    yield found.parser


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser, or those of its commands if it has some."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, summary in zip(action.choices.values(), action._choices_actions, strict=True):
                command.description = command.description or summary.help
            return [command for choice in action.choices.values() for command in _commands(choice)]
    return [parser]


def _heading(command: argparse.ArgumentParser) -> str:
    arguments = [f"[{_value(action)}]" if action.nargs in ("?", "*") else _value(action) for action in command._get_positional_actions()]
    return " ".join([command.prog, *arguments])


def _meaning(command: argparse.ArgumentParser) -> str:
    """The purpose of a command and its options; `--help` says what each means."""
    first, *rest = (command.description or "").partition("\n\n")[0].split()
    purpose = " ".join([first.capitalize(), *rest]).removesuffix(".") + "."
    options = [action for action in command._get_optional_actions() if not isinstance(action, argparse._HelpAction)]
    return f"{purpose} {', '.join(f'`{option.option_strings[0]}`' for option in options)}".strip()


def _value(argument: argparse.Action) -> str:
    """What stands for a positional argument in the help."""
    if argument.metavar is None:
        return "|".join(map(str, argument.choices)) if argument.choices else argument.dest.upper()
    return argument.metavar if isinstance(argument.metavar, str) else " ".join(argument.metavar)


def _list(meanings: Iterable[tuple[str, str]]) -> str:
    return "".join([*(f"- `{name}`: {meaning}\n" for name, meaning in meanings), "\n"])


if __name__ == "__main__":
    for name in PAGES:
        write_text(ROOT / f"docs/{name}.md", page(name))
