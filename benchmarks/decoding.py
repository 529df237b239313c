"""Speed of translating with ours, CTranslate2 and Hugging Face, side by side: ``python benchmarks/decoding.py``.

    python benchmarks/decoding.py --out results.md
    python benchmarks/decoding.py --model models/averaged --text data/raw/test.en --lines 1000

The same weights and the same sentences for all, beam 4, penalty |Y|^0.6, at most 50 tokens more than the source, from token ids to text;
tokens a second are those of the best outputs, end tokens included.
- Ours is `Translator.translate_tokens`: in float32 as stage decode runs it, in bf16 and int8, and with the stopping rule of the others
  (patience 1).
- CTranslate2 computes in float32 or int8; all sentences are one call of it.
- Hugging Face is `generate` in bf16: Marian for a post-norm model, M2M100 for a pre-norm one. Where these cannot hold the model it is left
  out.
Each gets the batch size and the threads that are fastest for it: all for one batch or one, and with CTranslate2 and ours one for each of
several batches at once. Runs before the first round settle that, and are the warm-up too.

An engine's speed hangs on how many steps it decodes, so that a random model says nothing: its outputs end at once or never. Without
--model the weights are those of a base-sized copier: it puts out the source token by token and ends where the source ends, with next to no
doubt, so that every engine decodes as many steps as the sentence has tokens, and the table says whether all outputs were the same. Lengths
are drawn as in WMT. What is left out there, the steps that an engine takes after its best output has ended, counts in runs with --model.

The engines live in processes of their own, which load the model before the clock runs and wait while others work. In each round each
runs once, in turn. The machine must do nothing else.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from peers.copier import write_copier
from peers.decoders import ENGINES, Choice, Work, serve
from peers.hugging_face_model import fits
from training import SETTINGS, machine, made_up_pairs, spread

from transformer_core.corpus.subword import Subword
from transformer_core.corpus.text import read_lines
from transformer_core.export.ctranslate2 import export_model
from transformer_core.models.directory import SUBWORD, load_model
from transformer_core.presets import BASE
from transformer_core.processes import cores

BATCHES = (1_024, 2_048, 4_096, 8_192)
ONE_BY_ONE = ("ours, float32", "ours, bf16", "ours, int8", "CTranslate2, float32", "CTranslate2, int8")


@dataclass(frozen=True)
class Run:
    """What a contender has done with some sentences."""

    seconds: float
    outputs: list[tuple[str, int]]

    @property
    def tokens(self) -> int:
        """Of the best outputs, end tokens included."""
        return sum(tokens for _, tokens in self.outputs)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Contender:
    """An engine in its process, from the first `with` on; what it does there is one `Work` after the other."""

    def __init__(self, engine: str, directory: Path, exported: Path, threads: int) -> None:
        self.engine = engine
        self.choice = Choice(BATCHES[0], 1, threads)
        self._connection, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=serve, args=(engine, directory, exported, theirs), daemon=True)

    def __enter__(self) -> "Contender":
        self._process.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.send(None)
        self._process.join()

    def run(self, sources: list[list[int]], *, one_by_one: bool) -> Run:
        """Translate, with what has been chosen."""
        self._connection.send(Work(sources, self.choice, one_by_one))
        run = Run(*self._connection.recv())
        print(f"{self.engine}, {self.described}: {run.rate:,.0f} target tok/s", file=sys.stderr, flush=True)
        return run

    def choose(self, sources: list[list[int]], threads: int, *, one_by_one: bool) -> None:
        """Settle what is fastest: the batches, then how many threads."""
        if one_by_one:
            self._take_fastest([Choice(BATCHES[0], 1, threads), Choice(BATCHES[0], 1, 1)], sources, one_by_one)
            return
        # Hugging Face has one batch at a time, and more threads do not always make it faster.
        several = 1 if self.engine.startswith("Hugging Face") else threads
        self._take_fastest([Choice(tokens, several, 1) for tokens in BATCHES], sources, one_by_one)
        self._take_fastest([self.choice, replace(self.choice, at_once=1, threads=threads)], sources, one_by_one)

    def _take_fastest(self, rivals: Sequence[Choice], sources: list[list[int]], one_by_one: bool) -> None:
        if len(set(rivals)) == 1:
            self.choice = rivals[0]
            return
        rates: dict[Choice, float] = {}
        for self.choice in rivals:
            self.run(sources[:4], one_by_one=one_by_one)  # Loads, fills caches and has kernels generated.
            rates[self.choice] = self.run(sources, one_by_one=one_by_one).rate
        self.choice = max(rates, key=rates.__getitem__)

    @property
    def described(self) -> str:
        """How it runs, in words."""
        return f"{self.choice.at_once} x {self.choice.threads}, {self.choice.batch_tokens:,} tokens"


def main() -> None:
    """Measure, print the tables."""
    options = arguments()
    load = os.getloadavg()[0]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        directory = options.model or Path(folder) / "copier" / "model"
        if options.model is None:
            write_copier(BASE, SETTINGS["cpu"]["base"].vocab_size, directory)
        model, exported = load_model(directory)[0], Path(folder) / "exported"
        export_model(model, directory, exported)
        sources = encoded(options, directory)
        names = [name for name in ENGINES if not name.startswith("Hugging Face") or fits(model)]
        contenders = [stack.enter_context(Contender(name, directory, exported, options.threads)) for name in names]
        text = "\n\n".join([heading(options, load), *tables(contenders, sources, options)]) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text, encoding="utf-8")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR", type=Path, help="a trained model; a base-sized copier where none is named")
    parser.add_argument("--text", metavar="FILE", type=Path, default=Path("data/raw/test.en"), help="what the trained model translates")
    parser.add_argument("--lines", type=int, default=100, help="sentences of a round")
    parser.add_argument("--alone", type=int, default=20, help="how many of them also come one by one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=cores(), help="of each engine")
    parser.add_argument("--out", type=Path, help="file for the tables")
    return parser.parse_args()


def encoded(options: argparse.Namespace, directory: Path) -> list[list[int]]:
    """The first lines of the text, or sentences of drawn tokens, as token ids."""
    if options.model is None:
        return [source for source, _ in made_up_pairs(SETTINGS["cpu"]["base"], options.lines)]
    subword = Subword.load(directory / SUBWORD)
    return [subword.encode(line) for line, _ in zip(read_lines(options.text), range(options.lines), strict=False)]


def tables(contenders: Sequence[Contender], sources: list[list[int]], options: argparse.Namespace) -> list[str]:
    """Of all sentences at hand, and of some of them one by one."""
    together = measured(contenders, sources, options, one_by_one=False)
    few = sources[: options.alone]
    alone = measured([one for one in contenders if one.engine in ONE_BY_ONE], few, options, one_by_one=True)
    return [
        f"## {len(sources)} sentences at hand, {sum(map(len, sources)):,} source tokens\n\n{together}",
        f"## One sentence at a time, {len(few)} of them\n\n{alone}",
    ]


def measured(contenders: Sequence[Contender], sources: list[list[int]], options: argparse.Namespace, *, one_by_one: bool) -> str:
    """A Markdown table: a row a contender, median (least-most) of the rounds."""
    for contender in contenders:
        contender.choose(sources, options.threads, one_by_one=one_by_one)
    runs: dict[Contender, list[Run]] = {contender: [] for contender in contenders}
    for _ in range(options.rounds):
        for contender in contenders:
            runs[contender].append(contender.run(sources, one_by_one=one_by_one))
    ours = runs[contenders[0]]
    head = ["engine", "batches at once x threads, batch", "target tok/s", "ours / this", "ms a sentence", "target tokens", "same as ours"]
    rows = [head, ["---"] * len(head)]
    for contender, own in runs.items():
        same = statistics.fmean(mine == theirs for (mine, _), (theirs, _) in zip(ours[0].outputs, own[0].outputs, strict=True))
        rows.append(
            [
                contender.engine,
                contender.described,
                spread([run.rate for run in own], ",.0f"),
                spread([mine.rate / run.rate for mine, run in zip(ours, own, strict=True)], ".2f") if own is not ours else "1",
                spread([1_000 * run.seconds / len(sources) for run in own], ",.1f"),
                f"{own[0].tokens:,}",
                f"{100 * same:.0f}%",
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def heading(options: argparse.Namespace, load: float) -> str:
    """The machine and what ran on it; the load is the average of the minute before."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "ctranslate2", "transformers"))
    return f"{machine()}, {options.threads} threads. {libraries}. Rounds: {options.rounds}. Load before the first run: {load:.1f}."


if __name__ == "__main__":
    main()
