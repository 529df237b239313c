"""The options in docs/commands.md, from the parsers and the Makefile. `python -m tests.commands_table` writes them."""

import argparse
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import NoReturn
from unittest.mock import patch

import flows
from tests.clone import ROOT
from transformer_core import cli
from transformer_core.files import write_text

PAGE = ROOT / "docs" / "commands.md"
_WRITTEN = re.compile(r"(?<=<!-- written from )(the \w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


class _Parsing(Exception):
    parser: argparse.ArgumentParser


def with_tables(page: str) -> str:
    """The text of the page with the parts between comments as they should be."""
    written = {
        "the Makefile": _targets,
        "the commands": lambda: _options([cli._parser()], "transformer-core "),
        "the flows": lambda: _options(_parsers_of_flows(), "python -m flows."),
    }
    return _WRITTEN.sub(lambda part: f"{part[1]}{part[2]}\n{written[part[1]]()}", page)


def _targets() -> str:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return _list(re.findall(r"^# (make [\w-]+)  +(?:[A-Z]+=\S+ )*(.*?)(?:[:;.] .*)?$", makefile, re.MULTILINE))


def _options(parsers: Iterable[argparse.ArgumentParser], program: str) -> str:
    commands = [command for parser in parsers for command in _commands(parser)]
    return "".join(
        f"### `{_heading(command).removeprefix(program)}`\n\n{_purpose(command)}\n\n{_list(_meanings(command))}" for command in commands
    )


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


def _purpose(command: argparse.ArgumentParser) -> str:
    first, *rest = (command.description or "").partition("\n\n")[0].split()
    return " ".join([first.capitalize(), *rest]).removesuffix(".") + "."


def _meanings(command: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in command._get_optional_actions():
        if not isinstance(action, argparse._HelpAction):
            option = f"{action.option_strings[0]} {_value(action)}".strip()
            yield option, (action.help or "") % {**vars(action), "choices": _value(action)}


def _value(action: argparse.Action) -> str:
    """What stands for the value in the help; nothing for a switch."""
    if action.nargs == 0:
        return ""
    if action.metavar is None:
        return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)


def _list(meanings: Iterable[tuple[str, str]]) -> str:
    lines = [f"- `{name}`: {meaning}\n" if meaning else f"- `{name}`\n" for name, meaning in meanings]
    return "".join([*lines, "\n"]) if lines else ""


if __name__ == "__main__":
    write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))
