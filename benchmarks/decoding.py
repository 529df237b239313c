"""Translation speed of this project, CTranslate2 and Hugging Face on a CPU: ``python benchmarks/decoding.py`` (GPU: gpu.py).

    python benchmarks/decoding.py --out results.md
    python benchmarks/decoding.py --model models/averaged --text data/raw/test.en --lines 1000

All use the same weights and the same sentences, beam 4, penalty |Y|^0.6, at most 50 tokens more than the source, from token ids to text;
tokens a second are those of the best outputs, end tokens included.
- Ours is `Translator.translate_tokens`, in float32 and bf16. It searches for the best output alone; stage decode searches for the K best,
  which takes longer (docs/decoding.md).
- CTranslate2 computes in float32 or int8; all sentences are one call of it.
- Hugging Face is `generate` in bf16: Marian for a post-norm model, M2M100 for pre-norm. It is left out if these cannot hold the model.
Each gets the batch size and the threads that are fastest for it: all for one batch or one, and with CTranslate2 one for each of several
batches at once. Runs before the first round make these choices, and are the warm-up too. An engine whose library is missing is left out.

The speed of an engine depends on the number of its steps, so a random model is no basis: its outputs end at once or never. Without --model
the weights are those of a base-sized copier: it outputs the source token by token and ends where the source ends, with high probability, so
every engine decodes as many steps as the sentence has tokens, and the table shows whether all outputs were the same. Lengths are drawn as
in WMT. Steps after the best output has ended, which the copier does not cause, are part of runs with --model.

Each engine has its own process, which loads the model before the clock runs and waits while others work. In each round each runs once, in
turn. Run nothing else on the machine.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from common import command_line, fastest, in_turn, markdown, spread, write_report
from peers.copier import write_copier
from peers.decoders import ENGINES, Choice, Output, translate
from training import SETTINGS, machine, random_pairs

from transformer_core.corpus.text import read_lines
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.ctranslate2_export import export_model
from transformer_core.models.directory import SUBWORD, load_model
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import BASE
from transformer_core.processes import cores

BATCHES = (1_024, 2_048, 4_096, 8_192)
ONE_BY_ONE = ("ours, float32", "ours, bf16", "CTranslate2, float32", "CTranslate2, int8")


@dataclass(frozen=True)
class Run:
    """One run of an engine; the rate is in tokens of the best outputs a second, end tokens included."""

    seconds: float
    outputs: list[Output]

    @property
    def tokens(self) -> int:
        """Tokens of the best outputs."""
        return sum(tokens for _, tokens in self.outputs)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Contender:
    """An engine, its two model directories, and the process in which it translates."""

    engine: str
    models: tuple[Path, Path]
    process: ProcessPoolExecutor

    def run(self, sources: list[list[int]], choice: Choice, one_by_one: bool) -> Run:
        """Translate with a choice."""
        run = Run(*self.process.submit(translate, self.engine, *self.models, sources, choice, one_by_one).result())
        print(f"{self.engine}, {described(choice)}: {run.rate:,.0f} target tok/s", file=sys.stderr, flush=True)
        return run

    def choose(self, sources: list[list[int]], threads: int, one_by_one: bool) -> Choice:
        """Return the fastest choice: of batches, then of threads."""

        def rate(choice: Choice) -> float:
            self.run(sources[:4], choice, one_by_one)  # Loads, fills caches and has kernels generated.
            return self.run(sources, choice, one_by_one).rate

        if one_by_one:
            return fastest([Choice(BATCHES[0], 1, threads), Choice(BATCHES[0], 1, 1)], rate)
        # Only CTranslate2 has several batches at a time; more threads do not always make the others faster.
        several = threads if self.engine.startswith("CTranslate2") else 1
        best = fastest([Choice(tokens, several, 1) for tokens in BATCHES], rate)
        return fastest([best, Choice(best.batch_tokens, 1, threads)], rate)


def described(choice: Choice) -> str:
    """Return a choice in words."""
    return f"{choice.at_once} x {choice.threads}, {choice.batch_tokens:,} tokens"


def main() -> None:
    """Measure, print the tables."""
    options = arguments()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # The engines' processes see no GPU.
    load = os.getloadavg()[0]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        directory = options.model or Path(folder) / "copier" / "model"
        if options.model is None:
            write_copier(BASE, SETTINGS["base"].vocab_size, directory)
        model, exported = load_model(directory)[0], Path(folder) / "exported"
        export_model(directory, exported)
        contenders = [
            Contender(name, (directory, exported), stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"))))
            for name in possible(model)
        ]
        sources = encoded(options, directory)
        together = table(contenders, sources, options, one_by_one=False)
        few = sources[: options.alone]
        alone = table([contender for contender in contenders if contender.engine in ONE_BY_ONE], few, options, one_by_one=True)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "ctranslate2", "transformers") if find_spec(name))
    parts = [
        f"{machine()}, {options.threads} threads. {libraries}. Rounds: {options.rounds}. Load before the first run: {load:.1f}.",
        f"## {len(sources)} sentences at hand, {sum(map(len, sources)):,} source tokens\n\n{together}",
        f"## One sentence at a time, {len(few)} of them\n\n{alone}",
    ]
    write_report(parts, options.out)


def possible(model: TranslationModel) -> Iterator[str]:
    """Yield the engines that can translate with this model here; say which lack a library."""
    for name in ENGINES:
        if name.startswith("Hugging Face") and find_spec("transformers") is None:
            print(f"{name} is left out: transformers is missing", file=sys.stderr, flush=True)
        elif not name.startswith("Hugging Face") or _fits_hugging_face(model):
            yield name


def _fits_hugging_face(model: TranslationModel) -> bool:
    from peers.hugging_face import fits

    return fits(model)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--model", metavar="DIR", type=Path, help="a trained model; by default a base-sized copier")
    parser.add_argument("--text", metavar="FILE", type=Path, default=Path("data/raw/test.en"), help="input of the trained model")
    parser.add_argument("--lines", type=int, default=100, help="sentences of a round")
    parser.add_argument("--alone", type=int, default=20, help="number of them that also come one by one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=cores(), help="of each engine")
    parser.add_argument("--out", type=Path, help="file for the tables")
    return parser.parse_args()


def encoded(options: argparse.Namespace, directory: Path) -> list[list[int]]:
    """Return the first lines of the text, or sentences of random tokens, as token ids."""
    if options.model is None:
        return [source for source, _ in random_pairs(SETTINGS["base"], options.lines)]
    subword = Subword.load(directory / SUBWORD)
    return [subword.encode(line) for line, _ in zip(read_lines(options.text), range(options.lines), strict=False)]


def table(contenders: Sequence[Contender], sources: list[list[int]], options: argparse.Namespace, one_by_one: bool) -> str:
    """Return a Markdown table with a row for each contender, median (least-most) of the rounds; the first contender is ours."""
    choices = {contender.engine: contender.choose(sources, options.threads, one_by_one) for contender in contenders}
    tasks = {one.engine: partial(one.run, sources, choices[one.engine], one_by_one) for one in contenders}
    runs = in_turn(tasks, options.rounds)
    ours = runs[contenders[0].engine]
    rows = []
    for engine, own in runs.items():
        same = statistics.fmean(mine == theirs for (mine, _), (theirs, _) in zip(ours[0].outputs, own[0].outputs, strict=True))
        rows.append(
            {
                "engine": engine,
                "batches at once x threads, batch": described(choices[engine]),
                "target tok/s": spread([run.rate for run in own], ",.0f"),
                "ours / this": "1" if own is ours else spread([mine.rate / run.rate for mine, run in zip(ours, own, strict=True)], ".2f"),
                "ms a sentence": spread([1_000 * run.seconds / len(sources) for run in own], ",.1f"),
                "target tokens": f"{own[0].tokens:,}",
                "same as ours": f"{100 * same:.0f}%",
            }
        )
    return markdown(pd.DataFrame(rows))


if __name__ == "__main__":
    main()
