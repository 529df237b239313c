"""The stages from download to binarize at size: ``python benchmarks/corpus.py --pairs 1000000 4000000 --out corpus.md``.

Synthetic pairs, each stage as its own process as `dvc repro` runs it, in a temporary folder (0.5 GB for a million pairs). A rate is pairs
in by the whole time of the process. Memory is the sum of the processes' proportional set sizes (PSS: a page that n of them share counts 1/n
in each), looked at five times a second, and its peak.

Bare SentencePiece is `encode` alone on lists of cleaned lines that are in memory: a process for each core, or threads of one process,
whichever is faster. Opening is `open_split` in a new process, the median of five. The plan is one epoch's at the lengths of the corpus.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from ruamel.yaml import YAML

from transformer_core.corpus.subword import Subword
from transformer_core.corpus.text import read_lines
from transformer_core.processes import cores
from transformer_core.recipes import read

REPOSITORY = Path(__file__).parents[1]
STAGES = ("download", "clean", "bpe", "binarize")
LINES_ENCODED = 200_000
OPEN = """
import sys, time
from pathlib import Path
from transformer_core.corpus.binary import open_split
began = time.perf_counter()
open_split(Path("data/binarized"), "train")
print(time.perf_counter() - began)
"""
PLAN = """
import sys, time
from pathlib import Path
import numpy as np
from transformer_core.corpus.batches import BatchPlan
from transformer_core.corpus.binary import open_split
split = open_split(Path("data/binarized"), "train")
times = int(sys.argv[1])
lengths = [np.tile(side.lengths, times) for side in (split.source, split.target)]
began = time.perf_counter()
updates = BatchPlan(*lengths, 25_000, 4_096, seed=1).epoch(0)
print(len(lengths[0]), len(updates), time.perf_counter() - began)
"""


def main() -> None:
    """Run the stages at each size and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--plan-pairs", type=int, default=36_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = ["| pairs | " + " | ".join(STAGES) + " | bare SentencePiece | binarize / bare | opening, s |", "|---:" * 8 + "|"]
    for pairs in options.pairs:
        with TemporaryDirectory(dir=options.folder) as name:
            place = Path(name)
            rows.append(_row(place, pairs))
            print(rows[-1], flush=True)
            plan, memory = _watched([sys.executable, "-c", PLAN, str(-(-options.plan_pairs // pairs))], place)
    rows.append("")
    count, updates, seconds = plan.split()
    rows.append(f"An epoch's plan for {int(count):,} pairs: {int(updates):,} updates in {float(seconds):.1f} s, {memory:.2f} GiB.")
    text = "\n".join(rows) + "\n"
    print(f"\n{text}")
    if options.out:
        options.out.write_text(text, encoding="utf-8")


def _row(place: Path, pairs: int) -> str:
    _prepare(place, pairs)
    cells, rates = [], {}
    for stage in STAGES:
        began = time.perf_counter()
        _, memory = _watched([sys.executable, "-m", f"flows.stages.{stage}"], place)
        rates[stage] = pairs / (time.perf_counter() - began)
        cells.append(f"{rates[stage]:,.0f}/s, {memory:.2f} GiB")
        print(f"{pairs:,} pairs, {stage}: {cells[-1]}", flush=True)
    bare = _bare_rate(place)
    opening = statistics.median(float(_watched([sys.executable, "-c", OPEN], place)[0]) for _ in range(5))
    return f"| {pairs:,} | {' | '.join(cells)} | {bare:,.0f}/s | {rates['binarize'] / bare:.0%} | {opening:.3f} |"


def _prepare(place: Path, pairs: int) -> None:
    yaml = YAML(typ="safe", pure=True)
    params: dict[str, Any] = yaml.load(read("synthetic"))
    params["download"]["corpus"] = "many"
    params["bpe"] |= {"sample": 1_000_000, "vocab_size": 2000}
    yaml.dump(params, place / "params.yaml")
    splits = {split: [{"synthetic": {"pairs": count, "seed": 1}}] for split, count in (("train", pairs), ("valid", 3_000), ("test", 3_000))}
    entry = {"name": "many", "languages": ["en", "de"], "licence": None, "note": "", "synthetic": True, "splits": splits}
    (place / "corpora").mkdir()
    yaml.dump(entry, place / "corpora/many.yaml")


def _watched(command: list[str], place: Path) -> tuple[str, float]:
    """The command's output, and the peak of its processes' memory in GiB."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True) as process:
        peak, ended = [0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peak, ended))
        watcher.start()
        assert process.stdout is not None
        output = process.stdout.read()
        ended.set()
        watcher.join()
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return output, peak[0] / 2**30


def _watch(pid: int, peak: list[int], ended: threading.Event) -> None:
    while not ended.wait(0.2):
        total = 0
        try:
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                total += process.memory_full_info().pss
        except psutil.Error:
            continue
        peak[0] = max(peak[0], total)


def _bare_rate(place: Path) -> float:
    """Pairs a second of SentencePiece alone, on all cores."""
    model = place / "data/bpe/spm.model"
    sides = [list(islice(read_lines(place / f"data/clean/train.{language}"), LINES_ENCODED)) for language in ("en", "de")]
    processor = Subword.load(model).processor
    began = time.perf_counter()
    for side in sides:
        processor.encode(side, add_eos=True, num_threads=cores())
    rates = [len(sides[0]) / (time.perf_counter() - began)]
    with ProcessPoolExecutor(cores()) as pool:
        seconds = list(pool.map(_encode, [model] * cores(), [[side[number :: cores()] for side in sides] for number in range(cores())]))
    rates.append(len(sides[0]) / max(seconds))
    return max(rates)


def _encode(model: Path, sides: list[list[str]]) -> float:
    processor = Subword.load(model).processor
    began = time.perf_counter()
    for side in sides:
        processor.encode(side, add_eos=True, num_threads=1)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
