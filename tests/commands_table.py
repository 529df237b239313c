"""The commands and their options in docs/commands.md, from the parsers and the Makefile. `python -m tests.commands_table` writes them."""

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
    write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))
