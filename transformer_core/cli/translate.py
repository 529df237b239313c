"""`transformer-core translate`: translate a file or standard input, line by line."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from transformer_core.cli import arguments as types
from transformer_core.cli.arguments import Commands, add_command, add_computing_arguments, chosen_device
from transformer_core.corpus.text import aligned, decode_line, read_lines
from transformer_core.errors import configuration_error, writing

if TYPE_CHECKING:
    from tqdm import tqdm

    from transformer_core.decoding.library import Prepared
    from transformer_core.decoding.translator import Hypothesis

_STDIN, _DEV_STDIN = Path("<stdin>"), Path("/dev/stdin")
# Enough for batches of similar length. CTranslate2 translates shorter batches, which it also sorts, and is faster.
LINES_AT_ONCE = {"torch": 1_024, "ctranslate2": 4_096}


def add_to(commands: Commands) -> None:
    example = "--model models/averaged --out news.de news.en"
    parser = add_command(commands, "translate", run, "translate a file or standard input, line by line", example)
    add = parser.add_argument
    add("input", metavar="FILE", type=Path, nargs="?", help="a sentence a line; may be compressed: .gz, .xz (default: standard input)")
    add("--model", metavar="DIR", type=Path, action="append", required=True, help="for example models/averaged; several translate together")
    add("--to", metavar="LANGUAGE", help="target language of a model of several directions")
    add("--out", metavar="FILE", type=Path, help="file for the translations (default: standard output)")
    add("--interactive", action="store_true", help="translate each line before reading the next")
    note = "The defaults are those with which the model was scored, or else these."
    add = parser.add_argument_group("beam search", note).add_argument
    add("--beam", metavar="K", type=types.beam, help="hypotheses kept at each position; 1 is greedy (default: 4)")
    add("--alpha", metavar="A", type=types.up_to_10, help="exponent of the length penalty, 0 for none (default: 0.6)")
    add("--penalty", choices=("wu", "power"), help="wu: ((5+|Y|)/6)^A, the paper's; power: |Y|^A (default: wu)")
    words = "stop after K times P finished translations (default: 1 with ctranslate2; torch stops when no other can become best)"
    add("--patience", metavar="P", type=types.up_to_100, help=words)
    add = parser.add_argument_group("bounds").add_argument
    add("--max-extra", metavar="N", type=types.max_extra, help="a translation has at most N tokens more than its line (default: 50)")
    words = "a longer line is translated in parts: its sentences, cut to N tokens (default: as 99.9%% in training have, at most 1024)"
    add("--max-input", metavar="N", type=types.positive_int, help=words)
    add("--prefixes", metavar="FILE", type=Path, help="forced beginnings of the translations, one a line")
    add("--glossary", metavar="FILE", type=Path, help="wanted translations: lines of a term, a tab and its translation")
    add = parser.add_argument_group("output").add_argument
    add("--nbest", action="store_true", help="the K best translations: line number, score, log-probability, text; tab-separated")
    add("--scores", action="store_true", help="score and log-probability before each translation")
    computing = parser.add_argument_group("computing")
    add = computing.add_argument
    add_computing_arguments(computing, "source tokens")
    words = "auto: bf16 where it is fast, else fp16 on a GPU, float32 on a CPU; int8: by CTranslate2 (default: the model's, or float32)"
    add("--precision", choices=("auto", "bf16", "fp16", "float32", "float64", "int8"), help=words)
    add("--shortlist", action=argparse.BooleanOptionalAction, help="search among the subwords on the line's shortlist")
    words = "auto: CTranslate2 on a CPU or in int8 if it has the other options, else PyTorch (default: the model's, or auto)"
    add("--engine", choices=("auto", "torch", "ctranslate2"), help=words)
    add("--verbose", action="store_true", help="print the engine and the reason for it")


def run(arguments: argparse.Namespace) -> int:
    """Translate all lines of the input; an empty line stays empty."""
    import torch

    if arguments.out and arguments.out.is_dir():
        raise configuration_error(f"--out: {arguments.out} is a directory", "Name a file.")
    for read in (arguments.input or _DEV_STDIN, arguments.prefixes, arguments.glossary):
        if read and arguments.out and arguments.out.is_file() and read.exists() and arguments.out.samefile(read):
            raise configuration_error(f"--out: {arguments.out} is an input file and would be replaced", "Name another file.")
        if read and arguments.out and read == _part(arguments.out):
            raise configuration_error(f"--out: {read} is an input file and what {arguments.out} is until its end", "Name another file.")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)  # Also that of the engines.
    threads = torch.get_num_threads()  # Which CTranslate2 changes.
    prepared = _prepared(arguments)
    if arguments.verbose:
        _report(prepared, threads)
    lines = read_lines(arguments.input) if arguments.input else _stdin_lines()
    interactive = arguments.interactive or (arguments.input is None and sys.stdin.isatty())
    at_once = 1 if interactive else LINES_AT_ONCE[prepared.choice.engine]
    with ExitStack() as files:
        bar = files.enter_context(_bar(arguments, at_once))
        target = files.enter_context(_written(arguments.out)) if arguments.out else sys.stdout.buffer
        numbers = count(1)
        texts: Iterator[tuple[str, str]] = ((line, "") for line in lines)
        if arguments.prefixes:
            texts = aligned(lines, read_lines(arguments.prefixes), arguments.input or _STDIN, arguments.prefixes)
        for found in prepared.translated(texts, at_once, 0 if interactive else 1, bar.update):
            for hypotheses in found:
                _write(target, hypotheses, next(numbers), arguments)
            target.flush()
    for note in prepared.reader.notes():
        print(note, file=sys.stderr)
    return 0


def _prepared(arguments: argparse.Namespace) -> "Prepared":
    """Load the engine for these options; those left out are of the search with which the first model was scored, or the paper's."""
    from transformer_core.decoding.glossary import glossary_of
    from transformer_core.decoding.library import LoadedModel
    from transformer_core.models.directory import CONFIG, read_config

    if arguments.glossary and arguments.prefixes:
        raise configuration_error("--glossary: not with --prefixes")
    names = ("beam", "alpha", "penalty", "max_extra", "patience", "batch_tokens", "to", "max_input")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    given["glossary"] = arguments.glossary and glossary_of(read_lines(arguments.glossary), str(arguments.glossary))
    config, device = read_config(arguments.model[0] / CONFIG), chosen_device(arguments.device)
    model = LoadedModel(arguments.model, config, arguments.engine, arguments.precision, device, arguments.shortlist)
    return model.prepared(None if arguments.nbest else int(arguments.scores), "--to", arguments.prefixes is not None, **given)


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces the one at `path`, or the target of that link, at the end of the block.

    Until then it is PATH.part, which stays if the block fails, unless it is empty. A device or a pipe is written to
    directly; to /dev/stdout the text is added, also if that is a file.
    """
    if path.exists() and (not path.is_file() or path.parent in (Path("/dev"), Path("/dev/fd"))):
        with path.open("ab") as device:
            yield device
    else:
        part = _part(path)
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            with writing(part), part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(part.with_suffix(""))
        except BaseException:
            if part.is_file() and not part.stat().st_size:
                part.unlink()
            raise


def _part(path: Path) -> Path:
    whole = path.resolve() if path.is_symlink() else path
    return whole.with_name(f"{whole.name}.part")


def _report(prepared: "Prepared", threads: int) -> None:
    """Print the engine, how it computes, and the reason for it."""
    from transformer_core.models.precision import low_precision, precision_name, weights_dtype

    device, precision = prepared.engine.device, str(prepared.wanted.precision)
    if precision == "auto":
        precision = precision_name(low_precision(device, "auto") or weights_dtype("auto"))
    engine, reason = prepared.choice
    print(f"engine {engine}, {precision}, on {device}, {threads} CPU threads: {reason}", file=sys.stderr)


def _bar(arguments: argparse.Namespace, at_once: int) -> "tqdm[Any]":
    """Return a bar of the lines, which stays as a closing line; a bar that is not shown if it would be among translations on a terminal."""
    from tqdm import tqdm

    among = at_once == 1 or (arguments.out is None and sys.stdout.isatty())
    return tqdm(desc="translate", unit=" lines", disable=among or not sys.stderr.isatty())


def _stdin_lines() -> Iterator[str]:
    """Yield the lines of standard input; a person at a terminal gets a prompt for each."""
    prompt = "> " if sys.stdin.isatty() and sys.stderr.isatty() else ""
    for number in count(1):
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            print(end="\n" if prompt else "", file=sys.stderr)
            return
        yield decode_line(line.removesuffix(b"\n"), _STDIN, number)


def _write(target: BinaryIO, hypotheses: "list[Hypothesis]", number: int, arguments: argparse.Namespace) -> None:
    for hypothesis in hypotheses if arguments.nbest else hypotheses[:1]:
        columns = [str(number)] if arguments.nbest else []
        if arguments.nbest or arguments.scores:
            columns += [f"{hypothesis.score:.4f}", f"{hypothesis.log_probability:.4f}"]
        target.write("\t".join((*columns, f"{hypothesis.text}\n")).encode())
