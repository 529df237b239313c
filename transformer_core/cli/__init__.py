"""The command line `transformer-core`; a module adds one or several related commands. Functions import heavy packages: help is fast."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from transformer_core.cli import attention, data, models, project, score, translate
from transformer_core.cli.arguments import Parser
from transformer_core.errors import ExitCode, UserError, machine_errors
from transformer_core.files import discard, flush_or_discard, prepare_streams

_EPILOG = """train: transformer-core recipe NAME, then dvc repro
more commands: python -m flows.scores, .compare, .sweep, .translate, .pipeline, .tracking (docs/commands.md)"""


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version  # Here: its import takes a tenth of a second.

        print(f"transformer-pipeline {version('transformer-pipeline')}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; an error is one line on standard error. Without arguments, show the help."""
    prepare_streams()
    try:
        with machine_errors("transformer-core", "Lower the option --batch-tokens, or use a machine with more."):
            chosen = _parser().parse_args((sys.argv[1:] if arguments is None else arguments) or ["--help"])
            code: int = chosen.run(chosen)
            sys.stdout.flush()
    except UserError as error:
        print(error, file=sys.stderr)
        flush_or_discard(sys.stdout)
        return error.exit_code
    except KeyboardInterrupt:
        print("transformer-core: interrupted", file=sys.stderr, flush=True)
        if arguments is None:  # At once: CTranslate2's destructor would first translate all batches that were begun.
            flush_or_discard(sys.stdout)
            os._exit(ExitCode.INTERRUPTED)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)
        return 128 + 13  # The exit code that a shell gives a filter that SIGPIPE ended.
    return code


def _parser() -> argparse.ArgumentParser:
    about, as_written = "Translate with a trained model, and related commands.", argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="transformer-core", description=about, epilog=_EPILOG, formatter_class=as_written, allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (translate, score, attention, models, project, data):
        command.add_to(commands)
    return parser
