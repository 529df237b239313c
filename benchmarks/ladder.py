"""From teacher to student: speed and quality of each step, side by side: ``python benchmarks/ladder.py``.

    python benchmarks/ladder.py --rounds 5 --out results.md
    python benchmarks/ladder.py --teacher models/teacher --student models/averaged --test data/raw/valid.en data/raw/valid.de

The teacher translates with beam 4 in float32 and in int8, then greedily, then with its shortlist if it has one; after it the student in the
same ways. Models are loaded before the clock runs. In each round every step runs once, in turn; ratios are to the teacher with beam 4 in
int8 of the same round. With --texts the translations are kept, for `transformer-core compare`.

Without model directories, teacher and students are copiers (peers/copier.py) of base size and of the presets student-base and student-tiny:
they show the speed alone. Their shortlists hold each subword, as many random ones as `--shortlist` says, and as many frequent ones.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import ctranslate2  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import torch
from common import command_line, in_turn, markdown, spread, write_report
from peers.copier import write_copier
from training import SETTINGS, machine, random_pairs

from transformer_core.cli.translate import LINES_AT_ONCE
from transformer_core.config import CTranslate2Precision, Model
from transformer_core.corpus.text import read_lines, write_lines
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist
from transformer_core.corpus.tokens.subword import EOS, Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.engine import DecodingRequest, Engine, SourceChunk, load, translated
from transformer_core.decoding.translator import BATCH_TOKENS, Hypothesis
from transformer_core.evaluation.metrics import score
from transformer_core.models.directory import CONFIG, SUBWORD, WEIGHTS, read_config
from transformer_core.presets import BASE, TransformerSize, resolve

STUDENTS = ("student-base", "student-tiny")
ALONE = 30  # Sentences that are translated one by one.


@dataclass(frozen=True)
class Step:
    """A step of the ladder: a model and how it translates."""

    name: str
    model: Path
    precision: CTranslate2Precision
    beam: int
    shortlist: bool

    @property
    def search(self) -> str:
        """How it translates, in words."""
        return f"{self.precision}, {'greedy' if self.beam == 1 else f'beam {self.beam}'}{', shortlist' if self.shortlist else ''}"

    @property
    def wanted(self) -> DecodingRequest:
        """What the engine is asked for."""
        search = Search(self.beam, 1.0, "power", patience=1)
        return DecodingRequest([self.model], search, self.precision, torch.device("cpu"), shortlist=self.shortlist)


@dataclass(frozen=True)
class Run:
    """A round of a step: seconds for all lines, seconds a sentence one by one, number of target tokens, translations."""

    seconds: float
    alone: float
    tokens: int
    texts: list[str]


def main() -> None:
    """Measure, print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--teacher", type=Path, help="model directory")
    parser.add_argument("--student", type=Path, help="model directory")
    parser.add_argument("--test", type=Path, nargs=2, metavar=("SOURCE", "REFERENCE"), help="texts to translate and to score")
    parser.add_argument("--lines", type=int, default=200, help="sentences of a round with copiers")
    parser.add_argument("--beam", type=int, default=1, help="of the steps after beam 4 (1, greedy)")
    parser.add_argument("--shortlist", type=int, default=100, help="size of the copiers' shortlists")
    parser.add_argument("--texts", type=Path, help="folder for the translations of each step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="file for the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    with TemporaryDirectory() as folder:
        models = {"teacher": options.teacher, "student": options.student} if options.teacher else dict(_copiers(Path(folder), options))
        sources, references = _texts(options, models["teacher"])
        steps = list(_steps(models, options.beam))
        runs = in_turn({step: partial(run, load("ctranslate2", step.wanted), step, sources) for step in steps}, options.rounds + 1)
        rows = [row(step, {one: runs[one][1:] for one in runs}, steps, references) for step in steps]
        if options.texts:
            options.texts.mkdir(parents=True, exist_ok=True)
            for step in steps:
                write_lines(options.texts / f"{step.name}.{step.search.replace(', ', '.').replace(' ', '')}", runs[step][-1].texts)
    about = f"{machine('cpu')}, 1 thread. CTranslate2 {ctranslate2.__version__}. Sentences: {len(sources):,}. Rounds: {options.rounds}."
    write_report([f"{about} Load before the first: {before:.1f}.", markdown(pd.DataFrame(rows))], options.out)


def _steps(models: dict[str, Path], narrow: int) -> Iterator[Step]:
    yield Step("teacher", models["teacher"], "float32", 4, shortlist=False)
    for name, model in models.items():
        for beam, shortlist in ((4, False), (narrow, False), (narrow, True)):
            if not shortlist or (model / SHORTLIST).is_file():
                yield Step(name, model, "int8", beam, shortlist)


def _copiers(folder: Path, options: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Write copiers with shortlists; yield their names and directories."""
    vocab_size = SETTINGS["base"].vocab_size
    sizes = {"teacher": BASE, **{name: resolve(Model(architecture="transformer", preset=name)) for name in STUDENTS}}
    draw = np.random.default_rng(1)
    for name, size in sizes.items():
        assert isinstance(size, TransformerSize)
        write_copier(size, vocab_size, folder / name / "model")
        others = draw.integers(EOS + 1, vocab_size, (vocab_size, options.shortlist))
        targets = np.concatenate([np.arange(vocab_size)[:, None], others], axis=1)
        starts = np.arange(vocab_size + 1) * targets.shape[1]
        Shortlist(starts, targets.flatten(), np.arange(options.shortlist)).save(folder / name / "model" / SHORTLIST)
        yield name, folder / name / "model"


def _texts(options: argparse.Namespace, teacher: Path) -> tuple[list[str], list[str] | None]:
    if options.test:
        source, reference = (list(read_lines(path)) for path in options.test)
        return source, reference
    subword = Subword.load(teacher / SUBWORD)
    return [subword.decode(source) for source, _ in random_pairs(SETTINGS["base"], options.lines)], None


def run(engine: Engine, step: Step, lines: list[str]) -> Run:
    """Translate all lines as the command does, and some one by one."""
    began = time.perf_counter()
    hypotheses = best_translations(engine, step.wanted, lines, LINES_AT_ONCE["ctranslate2"])
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    best_translations(engine, step.wanted, lines[:ALONE], 1)
    alone = (time.perf_counter() - began) / min(ALONE, len(lines))
    return Run(seconds, alone, sum(one.tokens for one in hypotheses), [one.text for one in hypotheses])


def best_translations(engine: Engine, wanted: DecodingRequest, lines: list[str], at_once: int) -> list[Hypothesis]:
    """Return the best translation of each line; `at_once` lines are in a chunk."""
    chunks = (
        SourceChunk([engine.subword.encode(line) for line in lines[first : first + at_once]]) for first in range(0, len(lines), at_once)
    )
    return [best for found in translated(engine, chunks, wanted, BATCH_TOKENS, ahead=0 if at_once == 1 else 1) for best, *_ in found]


def row(step: Step, runs: dict[Step, list[Run]], steps: list[Step], references: list[str] | None) -> dict[str, str]:
    """Return the row of a step."""
    own, teacher = runs[step], runs[steps[1]]
    rates, theirs = ([one.tokens / one.seconds for one in each] for each in (own, teacher))
    cells = {
        "model": step.name,
        "search": step.search,
        "target tok/s": spread(rates, ",.0f"),
        "times the teacher's": spread([mine / other for mine, other in zip(rates, theirs, strict=True)], ".2f"),
        "ms a sentence alone": spread([1_000 * one.alone for one in own], ".1f"),
        "MB of weights": f"{(step.model / WEIGHTS).stat().st_size / 1e6:.0f}",
    }
    if references is None:
        return cells
    scores = score(own[0].texts, references, read_config(step.model / CONFIG).target)
    changed = ""
    if step.shortlist:
        without = runs[replace(step, shortlist=False)][0].texts
        changed = f"{statistics.fmean(mine != other for mine, other in zip(own[0].texts, without, strict=True)):.1%}"
    return {**cells, "BLEU": f"{scores.bleu:.2f}", "chrF2": f"{scores.chrf:.2f}", "lines that the shortlist changes": changed}


if __name__ == "__main__":
    main()
