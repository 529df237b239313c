"""`transformer-core translate` with CTranslate2 beside CTranslate2's own call, on the same export: ``python benchmarks/engine.py``.

    python benchmarks/engine.py --sizes small base --lines 1000 --rounds 5 --out results.md
    python benchmarks/engine.py --model models/averaged --text data/raw/test.en

From lines to lines, with tokenisation; models are loaded before the clock runs. Penalty |Y|^0.6, patience 1, at most 50 tokens more than
the source.
- Ours is the path of `transformer-core translate` without scores: chunks of lines, a batch for each thread.
- "plain" is one call of `translate_batch` with the same search and otherwise the defaults of CTranslate2: all sentences are one batch,
  whose operations all threads share.
- "driven" is the same with a batch for each thread, of at most 1,024 tokens.
- "engine torch" is our own search, once, for the share of lines that are the same.
Without --model the weights are those of a copier (peers/copier.py), so outputs end where the source ends. In each round each contender runs
once, in turn; after them our own search.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import ctranslate2  # type: ignore[import-untyped]
import pandas as pd
import torch
from common import command_line, in_turn, markdown, spread, write_report
from peers.copier import write_copier
from training import SETTINGS, machine, random_pairs

from transformer_core.cli.translate import LINES_AT_ONCE
from transformer_core.config import CTranslate2Precision
from transformer_core.corpus.text import read_lines
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.engine import DecodingRequest, Engine, SourceChunk, load, translated
from transformer_core.decoding.translator import BATCH_TOKENS, Hypothesis
from transformer_core.export.ctranslate2 import cached_export
from transformer_core.models.directory import SUBWORD
from transformer_core.presets import BASE, TransformerSize

SIZES = {"small": TransformerSize(layers=3, d_model=256, d_ff=1_024, heads=8, d_k=32, d_v=32, dropout=0.1), "base": BASE}
OURS = "transformer-core translate"
Run = tuple[float, list[str]]


def main() -> None:
    """Measure, print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of the models")
    parser.add_argument("--model", type=Path, help="a model directory instead of the sizes")
    parser.add_argument("--text", type=Path, help="its source text")
    parser.add_argument("--lines", type=int, default=1_000, help="sentences of a round; a tenth for base")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of each contender")
    parser.add_argument("--out", type=Path, help="file for the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    before = os.getloadavg()[0]
    if options.model:
        rows = measured(options.model.name, options.model, list(read_lines(options.text)), options)
    else:
        rows = [row for size in options.sizes for row in of_copier(size, options)]
    about = f"{machine('cpu')}, {options.threads} threads. CTranslate2 {ctranslate2.__version__}. Rounds: {options.rounds}."
    write_report([f"{about} Load before the first: {before:.1f}.", markdown(pd.DataFrame(rows))], options.out)


def of_copier(size: str, options: argparse.Namespace) -> list[dict[str, str]]:
    """Return the rows of a copier of that size."""
    setting = SETTINGS[size]
    with TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        write_copier(SIZES[size], setting.vocab_size, directory)
        subword = Subword.load(directory / SUBWORD)
        lines = [subword.decode(source) for source, _ in random_pairs(setting, options.lines if size == "small" else options.lines // 10)]
        return measured(size, directory, lines, options)


def measured(name: str, directory: Path, lines: list[str], options: argparse.Namespace) -> list[dict[str, str]]:
    """Return the rows of a model: both precisions, beam 4 and 1."""
    rows = []
    for precision in get_args(CTranslate2Precision):
        for beam in (4, 1):
            runs = in_turn(contenders(directory, lines, precision, beam, options.threads), options.rounds + 1)
            wanted = search_of(directory, precision, beam)
            runs["engine torch"] = 2 * [timed(partial(by_us, load("torch", wanted), wanted), lines)]
            rows += [row(name, precision, beam, contender, runs) for contender in runs]
    return rows


def search_of(directory: Path, precision: CTranslate2Precision, beam: int) -> DecodingRequest:
    """Return the search of all contenders."""
    return DecodingRequest([directory], Search(beam, 0.6, "power", patience=1), precision, torch.device("cpu"))


def contenders(directory: Path, lines: list[str], precision: CTranslate2Precision, beam: int, threads: int) -> dict[str, Callable[[], Run]]:
    """Return the contenders by name, with their models loaded."""
    wanted, subword = search_of(directory, precision, beam), Subword.load(directory / SUBWORD)
    with cached_export(directory) as exported:
        plain, driven = (
            ctranslate2.Translator(str(exported), compute_type=precision, inter_threads=several, intra_threads=each)
            for several, each in ((1, threads), (threads, 1))
        )
    batches = {"max_batch_size": 1_024, "batch_type": "tokens"}
    return {
        OURS: partial(timed, partial(by_us, load("ctranslate2", wanted), wanted), lines),
        "translate_batch, plain": partial(timed, partial(by_a_call, plain, subword, beam, {}), lines),
        "translate_batch, driven": partial(timed, partial(by_a_call, driven, subword, beam, batches), lines),
    }


def timed(translate: Callable[[list[str]], list[str]], lines: list[str]) -> Run:
    """Return the seconds and the translations."""
    began = time.perf_counter()
    texts = translate(lines)
    return time.perf_counter() - began, texts


def by_us(engine: Engine, wanted: DecodingRequest, lines: list[str]) -> list[str]:
    """Translate as the command does."""
    return [best.text for best in best_translations(engine, wanted, lines, LINES_AT_ONCE["ctranslate2"])]


def best_translations(engine: Engine, wanted: DecodingRequest, lines: list[str], at_once: int) -> list[Hypothesis]:
    """Return the best translation of each line; `at_once` lines are in a chunk."""
    chunks = (
        SourceChunk([engine.subword.encode(line) for line in lines[first : first + at_once]]) for first in range(0, len(lines), at_once)
    )
    return [best for found in translated(engine, chunks, wanted, BATCH_TOKENS, ahead=0 if at_once == 1 else 1) for best, *_ in found]


def by_a_call(translator: Any, subword: Subword, beam: int, batches: dict[str, Any], lines: list[str]) -> list[str]:
    """Translate by a single call of `translate_batch`, as CTranslate2's documentation shows it."""
    pieces = [subword.processor.encode(line, out_type=str) for line in lines]
    longest = max(map(len, pieces)) + Search.max_extra
    found = translator.translate_batch(
        pieces, beam_size=beam, length_penalty=0.6, disable_unk=True, max_input_length=0, max_decoding_length=longest, **batches
    )
    return [subword.processor.decode(one.hypotheses[0]) for one in found]


def row(size: str, precision: str, beam: int, name: str, runs: dict[str, list[Run]]) -> dict[str, str]:
    """Return the row of a contender; the first round is the warm-up."""
    ours, own = (runs[one][1:] for one in (OURS, name))
    ratios: Sequence[float] = [theirs / mine for (mine, _), (theirs, _) in zip(ours, own, strict=False)]
    same = statistics.fmean(mine == theirs for mine, theirs in zip(ours[0][1], own[0][1], strict=True))
    return {
        "model": size,
        "precision, beam": f"{precision}, {beam}",
        "contender": name,
        "seconds": spread([seconds for seconds, _ in own], ".2f"),
        "ours is so many times as fast": "" if name == OURS else spread(ratios, ".2f"),
        "same lines": f"{100 * same:.0f}%",
    }


if __name__ == "__main__":
    main()
