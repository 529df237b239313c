"""`transformer-core translate`: translate a file or standard input, line by line."""

import argparse
import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from transformer_core.cli.arguments import (
    Commands,
    add_command,
    add_device_argument,
    add_threads_argument,
    beam,
    chosen_device,
    fraction,
    max_extra,
    non_negative_int,
    positive_int,
    samples,
    up_to_10,
    up_to_100,
    use_threads,
)
from transformer_core.corpus.text import decode_line, read_lines
from transformer_core.errors import UserError, configuration_error, writing

if TYPE_CHECKING:
    from tqdm import tqdm

    from transformer_core.decoding.beam import Search
    from transformer_core.decoding.engine import Choice, DecodingRequest, Engine, EngineOption, SourceChunk
    from transformer_core.decoding.lines import Line, LineReader
    from transformer_core.decoding.sampling import Sampling
    from transformer_core.decoding.translator import Hypothesis
    from transformer_core.models.directory import ModelConfig

_STDIN, _DEV_STDIN = Path("<stdin>"), Path("/dev/stdin")
# The options of each kind of search, which are named as its settings.
_SEARCHING, _SAMPLING = ("beam", "alpha", "penalty", "patience"), ("temperature", "top_k", "top_p", "seed")
# Enough for batches of similar length. CTranslate2 translates shorter batches, which it also sorts, and is faster.
LINES_AT_ONCE = {"torch": 1_024, "ctranslate2": 4_096}


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands,
        "translate",
        "translate a file or standard input, line by line",
        "transformer-core translate --model models/averaged --out news.de news.en",
    )
    add = parser.add_argument
    add(
        "input",
        metavar="FILE",
        type=Path,
        nargs="?",
        help="text, one sentence a line; may be compressed: .gz, .xz (default: standard input)",
    )
    add(
        "--model",
        metavar="DIR",
        type=Path,
        action="append",
        required=True,
        help="for example models/averaged; several translate together",
    )
    add("--to", metavar="LANGUAGE", help="target language of a model of several directions")
    add("--out", metavar="FILE", type=Path, help="file for the translations (default: standard output)")
    add("--interactive", action="store_true", help="translate each line before reading the next")
    searching = parser.add_argument_group("beam search", "The defaults are those with which the model was scored, or else these.")
    add = searching.add_argument
    add("--beam", metavar="K", type=beam, help="hypotheses kept at each position; 1 is greedy (default: 4)")
    add("--alpha", metavar="A", type=up_to_10, help="exponent of the length penalty, 0 for none (default: 0.6)")
    add("--penalty", choices=("wu", "power"), help="wu: ((5+|Y|)/6)^A, the paper's; power: |Y|^A (default: wu)")
    add(
        "--patience",
        metavar="P",
        type=up_to_100,
        help="stop after K times P finished translations (default: 1 with ctranslate2; torch stops when no other can become best)",
    )
    sampling = parser.add_argument_group("sampling instead of beam search")
    add = sampling.add_argument
    add("--sample", metavar="N", type=samples, help="draw N translations of each line and print the likeliest, or all with --nbest")
    add("--temperature", metavar="T", type=up_to_100, help="a value below 1 favours likely tokens (default: 1)")
    add("--top-k", metavar="K", type=non_negative_int, help="draw from the K likeliest tokens only; 0 for all (default: 0)")
    add("--top-p", metavar="P", type=fraction, help="draw from the likeliest tokens of total probability P only (default: 1)")
    add("--seed", metavar="S", type=non_negative_int, help="seed; a draw depends on it and on the line (default: 1)")
    bounds = parser.add_argument_group("bounds")
    add = bounds.add_argument
    add("--max-extra", metavar="N", type=max_extra, help="a translation has at most N tokens more than its line (default: 50)")
    add(
        "--max-input",
        metavar="N",
        type=positive_int,
        help="a longer line is translated in parts: its sentences, cut to N tokens (default: as 99.9%% in training have, at most 1024)",
    )
    add("--prefixes", metavar="FILE", type=Path, help="forced beginnings of the translations, one a line")
    add("--glossary", metavar="FILE", type=Path, help="wanted translations: lines of a term, a tab and its translation")
    writing = parser.add_argument_group("output")
    add = writing.add_argument
    add("--nbest", action="store_true", help="the K best translations: line number, score, log-probability, text; tab-separated")
    add("--scores", action="store_true", help="score and log-probability before each translation")
    computing = parser.add_argument_group("computing")
    add = computing.add_argument
    add(
        "--batch-tokens",
        metavar="N",
        type=positive_int,
        help="most source tokens in a batch, padding included; bounds memory (default: 4096)",
    )
    add_device_argument(computing)
    add_threads_argument(computing)
    add(
        "--precision",
        choices=("auto", "bf16", "fp16", "float32", "float64", "int8"),
        help="auto: bf16 where it is fast, else fp16 on a GPU, float32 on a CPU; int8: by CTranslate2 (default: the model's, or float32)",
    )
    add("--shortlist", action=argparse.BooleanOptionalAction, help="search among the subwords on the line's shortlist")
    add(
        "--engine",
        choices=("auto", "torch", "ctranslate2"),
        help="auto: CTranslate2 on a CPU or in int8 if it has the other options, else PyTorch (default: the model's, or auto)",
    )
    add("--verbose", action="store_true", help="print the engine and the reason for it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Translate all lines of the input; an empty line stays empty."""
    import torch

    from transformer_core.decoding.engine import choose_engine, load_engine, translated
    from transformer_core.decoding.lines import LineReader, most_tokens, to_language
    from transformer_core.models.directory import CONFIG, read_config

    if arguments.out and arguments.out.is_dir():
        raise configuration_error(f"--out: {arguments.out} is a directory", "Name a file.")
    for read in (arguments.input or _DEV_STDIN, arguments.prefixes, arguments.glossary):
        if read and arguments.out and arguments.out.is_file() and read.exists() and arguments.out.samefile(read):
            raise configuration_error(f"--out: {arguments.out} is an input file and would be replaced", "Name another file.")
    use_threads(arguments.threads)
    config = read_config(arguments.model[0] / CONFIG)
    asked, wanted = _completed(arguments, config)
    choice, threads = choose_engine(asked, wanted), torch.get_num_threads()
    engine = load_engine(choice.engine, wanted)  # CTranslate2 changes torch's number of threads.
    if arguments.verbose:
        _report(choice, engine, wanted, threads)
    lines = read_lines(arguments.input) if arguments.input else _stdin_lines()
    interactive = arguments.interactive or (arguments.input is None and sys.stdin.isatty())
    at_once = 1 if interactive else LINES_AT_ONCE[choice.engine]
    with ExitStack() as files:
        bar = files.enter_context(_bar(arguments, at_once))
        target = files.enter_context(_written(arguments.out)) if arguments.out else sys.stdout.buffer
        numbers = count(1)
        marked = to_language(config, engine.subword, arguments.to, "--to")
        reader = LineReader(engine.subword, config.source, most_tokens(config, engine.most_positions, arguments.max_input), marked)
        begun: deque[list[Line]] = deque()
        chunks = _chunks(lines, at_once, reader, begun, arguments.prefixes, engine)
        for results in translated(engine, chunks, wanted, arguments.batch_tokens, ahead=0 if interactive else 1, done=bar.update):
            found = iter(results)
            for line in begun.popleft():
                _write(target, line.joined([*islice(found, len(line.parts))]), next(numbers), arguments)
            target.flush()
    for note in reader.notes():
        print(note, file=sys.stderr)
    return 0


def _completed(arguments: argparse.Namespace, config: "ModelConfig") -> "tuple[EngineOption, DecodingRequest]":
    """Give options that were left out the values of the search with which the first model was scored, or else of the paper's.

    Returns:
        The engine and what it is to do. The model's own engine and precision give way to the options.
    """
    from transformer_core.config import PAPER_SEARCH
    from transformer_core.decoding.engine import DecodingRequest, model_gives_way
    from transformer_core.decoding.glossary import read_glossary
    from transformer_core.decoding.lines import most_tokens

    if arguments.glossary and (arguments.sample or arguments.prefixes):
        raise configuration_error("--glossary: not with --sample or --prefixes")
    scored = config.decode
    engine, precision = arguments.engine, arguments.precision
    for name, value in (scored.model_dump() if scored else PAPER_SEARCH.model_dump() | {"engine": "auto"}).items():
        if getattr(arguments, name) is None and not (arguments.sample and name in _SEARCHING):
            setattr(arguments, name, value)
    wanted = DecodingRequest(
        arguments.model,
        _search(arguments),
        arguments.precision,
        chosen_device(arguments.device),
        prefixes=arguments.prefixes is not None,
        scored=arguments.nbest or arguments.scores,
        longest=most_tokens(config, None, arguments.max_input) + arguments.max_extra,
        shortlist=arguments.shortlist,
        glossary=read_glossary(arguments.glossary) if arguments.glossary else None,
    )
    return model_gives_way(engine, precision, arguments.engine, wanted)


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces the one at `path`, or the target of that link, at the end of the block.

    Until then it is PATH.part, which stays if the block fails, unless it is empty. A device or a pipe is written to
    directly; to /dev/stdout the text is added, also if that is a file.
    """
    if path.exists() and (not path.is_file() or path.is_relative_to("/dev")):
        with path.open("ab") as device:
            yield device
    else:
        whole = path.resolve() if path.is_symlink() else path
        part = whole.with_name(f"{whole.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            with writing(part), part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(whole)
        except BaseException:
            if part.is_file() and not part.stat().st_size:
                part.unlink()
            raise


def _report(choice: "Choice", engine: "Engine", wanted: "DecodingRequest", threads: int) -> None:
    """Print the engine, how it computes, and the reason for it."""
    from transformer_core.models.precision import low_precision, precision_name, weights_dtype

    precision = str(wanted.precision)
    if wanted.precision == "auto":
        precision = precision_name(low_precision(engine.device, "auto") or weights_dtype("auto"))
    print(f"engine {choice.engine}, {precision}, on {engine.device}, {threads} CPU threads: {choice.reason}", file=sys.stderr)


def _chunks(
    lines: Iterator[str], at_once: int, reader: "LineReader", begun: "deque[list[Line]]", prefixes: Path | None, engine: "Engine"
) -> "Iterator[SourceChunk]":
    """Yield the parts of up to `at_once` lines, and for the first of a line the beginning of its translation if there is a file of these.

    The lines of each chunk are appended to `begun`.
    """
    from transformer_core.decoding.engine import SourceChunk

    beginnings = None if prefixes is None else read_lines(prefixes)
    while chunk := list(map(reader.read, islice(lines, at_once))):
        begun.append(chunk)
        starts: list[list[int]] | None = None
        if beginnings is not None:
            firsts = _starts(beginnings, len(chunk), prefixes, engine)
            starts = [start for first, line in zip(firsts, chunk, strict=True) for start in [first, *[[]] * (len(line.parts) - 1)]]
        yield SourceChunk([part for line in chunk for part in line.parts], starts)
    if beginnings is not None and next(beginnings, None) is not None:
        raise UserError(f"{prefixes}: has more lines than the input", "Give one line for each line of the input.")


def _search(arguments: argparse.Namespace) -> "Search | Sampling":
    from transformer_core.decoding.beam import Search
    from transformer_core.decoding.sampling import Sampling

    options = {name: value for name in (*_SEARCHING, *_SAMPLING) if (value := getattr(arguments, name)) is not None}
    for name in _SEARCHING if arguments.sample else _SAMPLING:
        if name in options:
            fault = "not with --sample" if arguments.sample else "needs --sample N"
            raise configuration_error(f"--{name.replace('_', '-')}: {fault}")
    if arguments.sample:
        return Sampling(arguments.sample, max_extra=arguments.max_extra, **options)
    search = Search(max_extra=arguments.max_extra, **options)
    return replace(search, nbest=search.beam) if arguments.nbest else search


def _bar(arguments: argparse.Namespace, at_once: int) -> "tqdm[Any]":
    """Return a bar of the lines, which stays as a closing line; a bar that is not shown if it would be among translations on a terminal."""
    from tqdm import tqdm

    among = at_once == 1 or (arguments.out is None and sys.stdout.isatty())
    shown = sys.stderr.isatty() and not among
    return tqdm(desc="translate", unit=" lines", disable=not shown)


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


def _starts(prefixes: Iterator[str], count: int, path: Path | None, engine: "Engine") -> list[list[int]]:
    """Return token ids of the prefixes of as many lines."""
    starts = [engine.subword.of_target.encode(prefix)[:-1] for prefix in islice(prefixes, count)]
    if len(starts) < count:
        raise UserError(
            f"{path}: fewer lines than the input", "Give one line for each line of the input; an empty line forces no beginning."
        )
    return starts


def _write(target: BinaryIO, hypotheses: "list[Hypothesis]", number: int, arguments: argparse.Namespace) -> None:
    for hypothesis in hypotheses if arguments.nbest else hypotheses[:1]:
        columns = [str(number)] if arguments.nbest else []
        if arguments.nbest or arguments.scores:
            columns += [f"{hypothesis.score:.4f}", f"{hypothesis.log_probability:.4f}"]
        target.write("\t".join((*columns, f"{hypothesis.text}\n")).encode())
