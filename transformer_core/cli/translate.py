"""`transformer-core translate`: lines of standard input to lines of standard output."""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_core.cli.arguments import Commands, non_negative_float, positive_int

if TYPE_CHECKING:
    from transformer_core.decoding.translator import Hypothesis

_STDIN = Path("<stdin>")
_LINES_AT_ONCE = 1_024  # Enough for batches of like length; a translation depends on its sentence alone, so it changes no output.


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("translate", help="translate standard input, line by line")
    parser.add_argument("--model", metavar="DIR", type=Path, required=True, help="for example models/averaged")
    parser.add_argument("--beam", metavar="K", type=positive_int, default=4, help="hypotheses kept at each position (4)")
    parser.add_argument("--alpha", metavar="A", type=non_negative_float, default=0.6, help="length penalty, 0 for none (0.6)")
    parser.add_argument("--nbest", action="store_true", help="all K translations: line number, score, log-probability, text; tab-separated")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Translate until standard input ends; an empty line stays empty."""
    from transformer_core.decoding.translator import Translator

    translator = Translator.load(arguments.model)
    lines = _stdin_lines()
    # A person at a terminal waits for each line.
    at_once = 1 if sys.stdin.isatty() else _LINES_AT_ONCE
    number = 1
    while chunk := list(islice(lines, at_once)):
        for hypotheses in translator.translate(chunk, arguments.beam, arguments.alpha):
            _write(hypotheses, number, arguments.nbest)
            number += 1
        sys.stdout.flush()
    return 0


def _stdin_lines() -> Iterator[str]:
    from transformer_core.corpus.text import decode_line

    for number, line in enumerate(sys.stdin.buffer, start=1):
        yield decode_line(line.removesuffix(b"\n"), _STDIN, number)


def _write(hypotheses: "list[Hypothesis]", number: int, nbest: bool) -> None:
    for one in hypotheses if nbest else hypotheses[:1]:
        ranking = f"{number}\t{one.score:.4f}\t{one.log_probability:.4f}\t" if nbest else ""
        sys.stdout.buffer.write(f"{ranking}{one.text}\n".encode())
