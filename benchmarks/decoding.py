"""Translation speed of our two engines and of Hugging Face's `generate`, on a GPU if there is one: ``python benchmarks/decoding.py``.

    python benchmarks/decoding.py --out results.csv
    python benchmarks/decoding.py --model models/averaged --text data/raw/test.en --lines 1000

All use the same weights and the same sentences, beam 4, penalty |Y|^0.6, at most 50 tokens more than the source, from token ids to text;
tokens a second are those of the best outputs, end tokens included. The first engine is the one with which outputs are compared.
- PyTorch and CTranslate2 are the engines of `transformer-core translate`; CTranslate2 has a thread for each of several batches.
- Hugging Face is Marian, which has no pre-norm: for a model with it name the others with --engines.
Each gets the batch size that is fastest for it; the runs that choose it are the warm-up. In each round each engine runs once, in turn.

The speed of an engine depends on the number of its steps, so a random model is no basis: its outputs end at once or never. Without --model
the weights are those of a base-sized copier: it outputs the source token by token and ends where the source ends, with high probability, so
every engine decodes as many steps as the sentence has tokens. Lengths are drawn as in WMT. Run nothing else on the machine.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import SETTINGS, command_line, random_pairs, report
from peers.copier import write_copier
from peers.hugging_face import decoder

from transformer_core.corpus.text import read_lines
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.ctranslate2_engine import CTranslate2Engine
from transformer_core.decoding.translator import Translator
from transformer_core.models.directory import SUBWORD
from transformer_core.models.precision import choose_kernels
from transformer_core.processes import cores

SEARCH = Search(beam=4, alpha=0.6, penalty="power", max_extra=50)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Outputs = list[tuple[str, int]]  # Texts and their tokens.
Translate = Callable[[Sequence[list[int]], int], Outputs]  # Of sources, and source tokens of a batch.


def _ours(engine: Translator | CTranslate2Engine) -> Translate:
    return lambda sources, batch: [(best.text, best.tokens) for best, *_ in engine.translate_tokens(sources, SEARCH, batch)]


ENGINES: dict[str, Callable[[Path], Translate]] = {
    "PyTorch, float32": lambda directory: _ours(Translator.load(directory, precision="float32", replicas=False)),
    "PyTorch, bf16": lambda directory: _ours(Translator.load(directory, precision="bf16", replicas=False)),
    "CTranslate2, float32": lambda directory: _ours(CTranslate2Engine.load(directory, cores(), "float32")),
    "CTranslate2, int8": lambda directory: _ours(CTranslate2Engine.load(directory, cores(), "int8")),
    "Hugging Face, bf16": partial(decoder, search=SEARCH, device=DEVICE),
}


def main() -> None:
    """Measure, print the table."""
    options = arguments()
    choose_kernels(DEVICE)
    with TemporaryDirectory() as folder:
        directory = options.model or Path(folder) / "copier" / "model"
        if options.model is None:
            write_copier(SETTINGS["base"].size, SETTINGS["base"].vocab_size, directory)
        sources = encoded(options, directory)
        engines = {name: ENGINES[name](directory) for name in options.engines}
        batches = {name: fastest(name, translate, sources, options.batches) for name, translate in engines.items()}
        runs = []
        for _ in range(options.rounds):
            first: Outputs = []
            for name, translate in engines.items():
                figures, outputs = run(name, translate, sources, batches[name], options.alone)
                first = first or outputs
                runs.append({**figures, "outputs as the first's, %": 100 * sum(map(tuple.__eq__, first, outputs)) / len(outputs)})
    report(runs, ["engine", "batch"], options.out)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line(__doc__)
    engines = ["PyTorch, bf16", "Hugging Face, bf16"] if DEVICE.type == "cuda" else list(ENGINES)
    batches = [4_096, 16_384, 65_536] if DEVICE.type == "cuda" else [1_024, 2_048, 4_096, 8_192]
    parser.add_argument("--model", metavar="DIR", type=Path, help="a trained model; by default a base-sized copier")
    parser.add_argument("--text", metavar="FILE", type=Path, default=Path("data/raw/test.en"), help="input of the trained model")
    parser.add_argument("--lines", type=int, default=100, help="sentences of a round")
    parser.add_argument("--alone", type=int, default=20, help="number of them that also come one by one")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=engines)
    parser.add_argument("--batches", type=int, nargs="+", default=batches, help="source tokens of a batch, to choose from")
    return parser.parse_args()


def encoded(options: argparse.Namespace, directory: Path) -> list[list[int]]:
    """Return the first lines of the text, or sentences of random tokens, as token ids."""
    if options.model is None:
        return [source for source, _ in random_pairs(SETTINGS["base"], options.lines)]
    subword = Subword.load(directory / SUBWORD)
    return [subword.encode(line) for line, _ in zip(read_lines(options.text), range(options.lines), strict=False)]


def fastest(name: str, translate: Translate, sources: list[list[int]], batches: list[int]) -> int:
    """Return the batch size with which an engine is fastest."""
    translate(sources[:4], batches[0])  # Fills caches and has kernels generated.
    return max(batches, key=lambda batch: run(name, translate, sources, batch, 0)[0]["target tok/s"])


def run(name: str, translate: Translate, sources: list[list[int]], batch: int, alone: int) -> tuple[dict[str, Any], Outputs]:
    """Translate all sentences together and the first `alone` one by one; return the figures, and the outputs of all."""
    began = time.perf_counter()
    outputs = translate(sources, batch)
    together = time.perf_counter()
    for source in (apart := sources[:alone]):
        translate([source], batch)
    ended = time.perf_counter()
    rate = sum(tokens for _, tokens in outputs) / (together - began)
    print(f"{name}, {batch:,} tokens a batch: {rate:,.0f} target tok/s", file=sys.stderr, flush=True)
    figures = {"engine": name, "batch": batch, "target tok/s": rate, "ms a sentence alone": 1_000 * (ended - together) / max(1, len(apart))}
    return figures, outputs


if __name__ == "__main__":
    main()
