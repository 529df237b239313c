"""Shared by the commands, also those of `flows`: their parser, types of arguments, and the options for a device and a model."""

import argparse
import math
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeVar

from transformer_core.errors import configuration_error

if TYPE_CHECKING:
    import torch

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """A parser for which wrong arguments are bad configuration: one line and exit code 78."""

    def error(self, message: str) -> NoReturn:
        """Raise a `UserError` (78) with the message and the command that shows the help."""
        in_one_line = message.replace("\n", "\\n")  # It may quote an argument.
        raise configuration_error(f"{self.prog}: {in_one_line}", f"See: {self.prog} --help")


def _checked(convert: Callable[[str], T], holds: Callable[[T], object], words: str) -> Callable[[str], T]:
    """Return a type for argparse: `convert`, with an error that says `words` if that fails or the value does not satisfy `holds`."""

    def checked(text: str) -> T:
        with suppress(ValueError):
            if holds(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(f"must be {words}, got {text!r}")

    return checked


def _whole(text: str) -> int:
    if not text.isdecimal():  # `int` also accepts "+1", "1_000" and " 1 ".
        raise ValueError
    return int(text)


positive_int = _checked(_whole, lambda value: value > 0, "a whole number above 0")
positive_float = _checked(float, lambda value: 0 < value < math.inf, "a number above 0")
non_negative_float = _checked(float, lambda value: 0 <= value < math.inf, "a number, 0 or more")
beam = _checked(_whole, lambda value: 0 < value <= 100, "a whole number from 1 to 100")  # As decode.beam.
max_extra = _checked(_whole, lambda value: 0 < value <= 100_000, "a whole number from 1 to 100,000")
up_to_10 = _checked(float, lambda value: 0 <= value <= 10, "a number from 0 to 10")  # As decode.alpha.
up_to_100 = _checked(float, lambda value: 0 < value <= 100, "a number above 0, at most 100")
above_16 = _checked(_whole, lambda value: value > 16, "a whole number above 16")  # As bpe.vocab_size.
sentence = _checked(str, lambda text: text.encode().decode() == text, "valid UTF-8")  # Python passes other bytes on as surrogates.
_threads = _checked(_whole, lambda value: 0 < value <= 1_024, "a whole number from 1 to 1,024")
_device = _checked(str, re.compile(r"cpu|cuda(:(0|[1-9][0-9]?))?").fullmatch, "cpu, cuda or cuda:N")


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int] | None, summary: str, example: str
) -> argparse.ArgumentParser:
    """Add a command that calls `run`, and return its parser. Its help begins with the summary and ends with the arguments of an example."""
    sentence = f"{summary[0].upper()}{summary[1:]}."
    parser = commands.add_parser(name, help=summary, description=sentence, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = f"example: {parser.prog} {example}"
    parser.set_defaults(run=run)
    return parser


def add_device_argument(parser: argparse._ActionsContainer) -> None:
    """Add the option --device."""
    parser.add_argument("--device", metavar="D", type=_device, help="cpu, cuda or cuda:N (default: all GPUs, if any)")


def chosen_device(name: str | None) -> "torch.device | None":
    """Return the device of --device, None if not given. Raises `UserError` (78): the machine has no such GPU."""
    from transformer_core.decoding.library import usable_device

    return None if name is None else usable_device(name, "--device")


def add_computing_arguments(parser: argparse._ActionsContainer, counted: str) -> None:
    """Add the options --batch-tokens, which bounds what is counted, --device and --threads."""
    bound = f"most {counted} in a batch, padding included; bounds memory (default: 4096)"
    parser.add_argument("--batch-tokens", metavar="N", type=positive_int, help=bound)
    add_device_argument(parser)
    parser.add_argument("--threads", metavar="N", type=_threads, help="threads on a CPU (default: $OMP_NUM_THREADS, or one a core)")


def dvc_repro() -> str:
    """Return the command that runs the pipeline, after the one that makes a project where none is.

    A program is named with its folder if that is a .venv here which is not activated.
    """
    repro = f"{_program('dvc')} repro"
    return repro if Path("dvc.yaml").exists() else f"{_program('transformer-core')} new . && {repro}"


def _program(name: str) -> str:
    installed = Path(".venv/bin") / name
    return str(installed if which(name) is None and installed.exists() else name)


def in_bytes(size: float) -> str:
    """Format a size: 950 kB, 12 MB, 1.4 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}" if size < 10 * scale else f"{size / scale:,.0f} {unit}"
    return f"{size / 1e3:,.0f} kB"
