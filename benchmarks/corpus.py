"""The stages from download to binarize on large corpora: ``python benchmarks/corpus.py --pairs 1000000 4000000 --out corpus.md``.

Pairs of random words; each stage runs as its own process, as `dvc repro` runs it, in a temporary folder (0.5 GB for a million pairs). A
rate is the number of pairs that enter a stage by the whole time of its process. Memory is the peak of the sum of the processes'
proportional set sizes (PSS: a page that n of them share counts 1/n in each), read about five times a second.

Bare SentencePiece is `encode` alone on lists of cleaned lines in memory: in one process for each core, or with threads in one process,
whichever is faster. Opening is `open_split` in a new process, the median of five. The plan is that of one epoch.
"""

import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import pandas as pd
import psutil
from common import DATA_STAGES, STAGE_ENVIRONMENT, command_line, markdown, write_params, write_report

from transformer_core.corpus.text import read_lines
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.processes import cores

LINES_ENCODED = 200_000
OPEN = """
import time
from pathlib import Path
from transformer_core.corpus.tokens.binary import open_split
began = time.perf_counter()
open_split(Path("data/binarized/train"))
print(time.perf_counter() - began)
"""
PLAN = """
import sys, time
from pathlib import Path
import numpy as np
from transformer_core.corpus.tokens.batches import BatchPlan
from transformer_core.corpus.tokens.binary import open_split
split = open_split(Path("data/binarized/train"))
lengths = [np.tile(side.lengths, int(sys.argv[1])) for side in (split.source, split.target)]
began = time.perf_counter()
updates = BatchPlan(*lengths, 25_000, 4_096, seed=1).epoch(0)
print(len(lengths[0]), len(updates), time.perf_counter() - began)
"""


def main() -> None:
    """Run the stages at each size and print a row for each."""
    parser = command_line(__doc__)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--plan-pairs", type=int, default=36_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for pairs in options.pairs:
        with TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            rows.append(measure(folder, pairs))
            print(rows[-1], flush=True)
            plan, _, memory = watched([sys.executable, "-c", PLAN, str(-(-options.plan_pairs // pairs))], folder)
    count, updates, seconds = plan.split()
    of_plan = f"An epoch's plan for {int(count):,} pairs: {int(updates):,} updates in {float(seconds):.1f} s, {memory:.2f} GiB."
    write_report([markdown(pd.DataFrame(rows)), of_plan], options.out)


def measure(folder: Path, pairs: int) -> dict[str, str]:
    """Run the stages on so many pairs and return a row of the table."""
    write_params(folder, {"train": pairs, "valid": 3_000, "test": 3_000}, bpe={"sample": 1_000_000, "vocab_size": 2000})
    row, rate = {"pairs": f"{pairs:,}"}, 0.0
    for stage in DATA_STAGES:
        _, seconds, memory = watched([sys.executable, "-m", "flows.stages", stage], folder)
        rate = pairs / seconds
        row[stage] = f"{rate:,.0f}/s, {memory:.2f} GiB"
        print(f"{pairs:,} pairs, {stage}: {row[stage]}", flush=True)
    bare = bare_rate(folder)
    opening = statistics.median(float(watched([sys.executable, "-c", OPEN], folder)[0]) for _ in range(5))
    return {**row, "bare SentencePiece": f"{bare:,.0f}/s", "binarize / bare": f"{rate / bare:.0%}", "opening, s": f"{opening:.3f}"}


def watched(command: list[str], folder: Path) -> tuple[str, float, float]:
    """Run a command in a folder; return its output, its seconds, and the peak memory of its processes in GiB."""
    peak, began = 0, time.perf_counter()
    with TemporaryFile("w+") as output:
        with subprocess.Popen(command, cwd=folder, env=STAGE_ENVIRONMENT, stdout=output) as process:
            while process.poll() is None:
                with suppress(psutil.Error):
                    root = psutil.Process(process.pid)
                    peak = max(peak, sum(one.memory_full_info().pss for one in (root, *root.children(recursive=True))))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        seconds = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"{command} ended with {process.returncode}")
        output.seek(0)
        return output.read(), seconds, peak / 2**30


def bare_rate(folder: Path) -> float:
    """Return the pairs a second of SentencePiece alone, on all cores."""
    model = folder / "data/bpe/spm.model"
    sides = [list(islice(read_lines(folder / f"data/clean/train.{language}"), LINES_ENCODED)) for language in ("en", "de")]
    seconds = [encode(model, sides, cores())]
    with ProcessPoolExecutor(cores()) as pool:
        parts = [[side[number :: cores()] for side in sides] for number in range(cores())]
        seconds.append(max(pool.map(encode, [model] * cores(), parts, [1] * cores())))
    return len(sides[0]) / min(seconds)


def encode(model: Path, sides: list[list[str]], threads: int) -> float:
    """Return the seconds that SentencePiece takes to encode both sides."""
    processor = Subword.load(model).processor
    began = time.perf_counter()
    for side in sides:
        processor.encode(side, add_eos=True, num_threads=threads)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
