"""Training speed and memory of this project, Hugging Face's Marian and JoeyNMT on a CPU: ``python benchmarks/training.py`` (GPU: gpu.py).

    python -m venv joeynmt
    joeynmt/bin/pip install torch==2.13.0 joeynmt==2.3.0 sentencepiece==0.2.0 importlib_metadata
    python benchmarks/training.py --joeynmt-python joeynmt/bin/python --out results.md --json results.json

All train one architecture with the same updates of random pairs: lengths as in Multi30k or WMT, tokens drawn uniformly.
- Ours is the trainer of stage train as that stage runs it: a process for each core under torchrun, in bf16 if the machine has it.
- Hugging Face is `MarianMTModel` in a plain loop: the same precision, one process on all cores, PyTorch's own cross-entropy and Adam.
- JoeyNMT is its own model in its own training loop, in float32, its only precision on a CPU; one process on all cores. Dropout that the
  others do not have is off.
Our batch plan defines the pairs of an update. The peers get those as 1, 2 or 4 micro-batches, whichever is fastest for each, cut in order
of length, which leaves less padding than their own loaders would; ours gets the fastest of these too. Hugging Face's attention is the
faster of PyTorch's fused one, its default, and the eager one. The peers' threads are as many as the cores or half of them, whichever is
faster. Short trials before the first round make these choices.

In each round each contender runs once, alone, in its own processes: first a whole training for warm-up, then one that is timed. Both start
from the same update, so that no batch shape is new while the clock runs: kernels are generated for each new shape. Making
batches out of token ids is timed, saving is not. Run nothing else on the machine: threads of one process wait for each other at every
operation, so that other work slows the peers by far more than its share, ours by less.

MFU is 6 x parameters of matrix products x tokens (source tokens for the encoder and the decoder's keys and values of the source, target
tokens for all else; without padding and without attention's own products) a second, by the machine's best 4096 x 4096 bf16 product of this
run. Data wait is the share of our time in which a process had no batch ready; the peers have all batches in memory from the start.
Memory (Linux) is the peak resident set summed over a contender's processes, including torchrun's.
The rest is its growth after all imports, without 16 bytes a parameter and process: weights, gradients and Adam's two moments.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import command_line, fastest, markdown, spread, write_report
from numpy.typing import NDArray
from peers.job import Job, take_reports
from peers.matmul import rate as product_rate

from transformer_core.config import Model, resolve
from transformer_core.corpus.tokens.batches import BatchPlan
from transformer_core.corpus.tokens.binarizing import EncodedPairs, write_split
from transformer_core.corpus.tokens.binary import BinarizedSplit, open_split
from transformer_core.corpus.tokens.subword import EOS
from transformer_core.files import write_json
from transformer_core.presets import TransformerSize
from transformer_core.processes import cpu_name
from transformer_core.training.devices import default_devices, default_threads

SEED = 1
LEAST_PAIRS = 20_000
LONGEST = 100
TARGET_PER_SOURCE = 1.1
RATIO_SPREAD = 0.15
FIRST_WORD = EOS + 1
STATE_BYTES = 16
MICROBATCHES = (1, 2, 4)  # Of an update; to choose from.
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
HERE = Path(__file__).parent
ON_CPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # Also where there is a GPU.


@dataclass(frozen=True)
class Setting:
    """A model and the updates to train it with.

    Attributes:
        updates: number of updates that are timed.
        source_length: mean tokens of a source sentence, end token included.
        spread: standard deviation of the logarithm of lengths.
    """

    preset: str
    vocab_size: int
    tokens_per_update: int
    updates: int
    source_length: float
    spread: float

    @property
    def size(self) -> TransformerSize:
        """The architecture."""
        size = resolve(Model(preset=self.preset))
        assert isinstance(size, TransformerSize)
        return size


# gpu.py has the paper's updates: a CPU takes minutes for one.
SETTINGS = {
    "small": Setting("small", 8_000, 2_560, 16, 14, 0.35),
    "base": Setting("base", 37_000, 4_096, 6, 28, 0.55),
    "tiny": Setting("tiny", 2_000, 512, 5, 14, 0.35),
}


@dataclass(frozen=True)
class Contender:
    """One of the implementations that are compared.

    Attributes:
        module: the program of its processes.
        python: the interpreter that runs it.
        attentions: implementations to choose from, the default first.
        threads: numbers of threads to choose from, the greatest first; None is the number that stage train would take.
    """

    name: str
    module: str
    python: Path
    attentions: tuple[str, ...]
    threads: tuple[int | None, ...]


Run = dict[str, Any]  # A record of --json: one run of a contender.

OURS = Contender("ours", "peers.ours", Path(sys.executable), ("own",), (None,))


@dataclass(frozen=True)
class Choice:
    """The choices of a contender: micro-batches of an update, attention, threads."""

    microbatches: int
    attention: str
    threads: int | None


def main() -> None:
    """Run all settings, print the tables."""
    options = arguments()
    load = os.getloadavg()[0]
    contenders = [OURS, *peers(options.joeynmt_python)]
    products: list[float] = []
    results: dict[str, list[Run]] = {}
    for name in options.settings:
        results[name] = []
        with TemporaryDirectory() as folder:
            for runs in measure(SETTINGS[name], contenders, options, Path(folder), products):
                results[name] += runs
                if options.json:  # After each round, so that a benchmark that is stopped keeps the rounds before.
                    write_json(options.json, {"machine": machine(), "load": load, "product_flops_per_second": products, "runs": results})
    best = max(products)
    parts = [
        heading(machine(), results, best, load),
        *(section(name, SETTINGS[name], runs, best) for name, runs in results.items()),
    ]
    if len(contenders) == 2:
        parts.append("JoeyNMT is left out: no --joeynmt-python was given.")
    write_report(parts, options.out)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["small", "base"])
    parser.add_argument("--joeynmt-python", metavar="PATH", type=Path, help="an interpreter that has joeynmt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, help="number of timed updates; by default that of the setting")
    parser.add_argument("--out", type=Path, help="file for the tables")
    parser.add_argument("--json", type=Path, help="file for the raw figures")
    return parser.parse_args()


def peers(joeynmt_python: Path | None) -> Iterator[Contender]:
    """Yield the peers that can run here."""
    cores = default_threads(1)
    threads = (cores,) if cores == 1 else (cores, cores // 2)
    yield Contender("Hugging Face", "peers.hugging_face", Path(sys.executable), ("sdpa", "eager"), threads)
    if joeynmt_python is not None:
        # The symbolic link is not resolved: its place is what makes it the interpreter of its environment.
        yield Contender("JoeyNMT", "peers.joey", joeynmt_python.absolute(), ("own",), threads)


def measure(
    setting: Setting, contenders: Sequence[Contender], options: argparse.Namespace, folder: Path, products: list[float]
) -> Iterator[list[Run]]:
    """Yield the runs of each round of a setting; the machine's rate before the round is added to `products`."""
    timed = options.updates or setting.updates
    split = random_split(setting, timed, folder)
    choices: dict[Contender, Choice] = {}

    def run(contender: Contender, choice: Choice, number: int, updates: int) -> Run:
        ours = choice if contender == OURS else choices[OURS]  # Our plan makes everyone's updates.
        own = run_contender(contender, choice, setting, split, plan(setting, split, ours.microbatches, updates), folder)
        what = f"{setting.preset}, {f'round {number}' if number else 'trial'}, {contender.name}, {described(own)}"
        print(f"{what}: {own['target_tokens'] / own['seconds']:,.0f} target tok/s", file=sys.stderr, flush=True)
        return {"contender": contender.name, "round": number, **own}

    def trial(contender: Contender, choice: Choice) -> float:
        try:
            own = run(contender, choice, 0, max(2, timed // 4))
        except ContenderFailed as error:  # Some machines have not enough memory for every choice.
            print(f"{error}: not chosen", file=sys.stderr, flush=True)
            return 0.0
        return float(own["target_tokens"] / own["seconds"])

    for contender in contenders:
        choices[contender] = choose(contender, partial(trial, contender))
    for number in range(1, options.rounds + 1):
        products.append(product_rate(torch.device("cpu")))
        yield [run(contender, choice, number, timed) for contender, choice in choices.items()]


def choose(contender: Contender, rate: Callable[[Choice], float]) -> Choice:
    """Return the fastest choice of a contender: of threads, then micro-batches, then attention."""
    choice, known = Choice(MICROBATCHES[0], contender.attentions[0], contender.threads[0]), cache(rate)
    choice = fastest([replace(choice, threads=count) for count in contender.threads], known)
    choice = fastest([replace(choice, microbatches=count) for count in MICROBATCHES], known)
    return fastest([replace(choice, attention=name) for name in contender.attentions], known)


def described(run: Run) -> str:
    """Return processes, threads and choices in words."""
    microbatches, attention = run["choice"]["microbatches"], run["choice"]["attention"]
    batches = "whole updates" if microbatches == 1 else f"{microbatches} micro-batches"
    return f"{run['processes']} x {run['threads']}, {run['precision']}, {batches}{'' if attention == 'own' else f', {attention} attention'}"


class ContenderFailed(SystemExit):
    """A contender's process failed and its output has been shown; uncaught, it ends the benchmark with one line."""


def run_contender(
    contender: Contender, choice: Choice, setting: Setting, split: BinarizedSplit, plan: Sequence[NDArray[np.int64]], folder: Path
) -> Run:
    """Run a contender once on the pairs of each update: the time of its slowest process and the memory of all.

    Raises:
        ContenderFailed: a process of it failed.
    """
    processes = default_devices(choice.microbatches) if contender == OURS else 1
    job = job_of(setting, split, plan, replace(choice, threads=choice.threads or default_threads(processes)))
    reports = run_processes(contender, job, folder, processes)
    source_tokens, target_tokens = (sum(int(side.lengths[pairs].sum()) for pairs in plan) for side in (split.source, split.target))
    if any(report["target_tokens"] != target_tokens for report in reports):
        raise RuntimeError(f"{contender.name} counted {reports[0]['target_tokens']} target tokens, not {target_tokens}")
    growth = sum(report["peak_bytes"] - report["before_bytes"] for report in reports)
    return {
        "choice": asdict(choice),
        "processes": processes,
        "threads": job.threads,
        **{key: reports[0][key] for key in ("precision", "versions", "parameters")},
        "updates": len(plan),
        "seconds": max(report["seconds"] for report in reports),
        "source_tokens": source_tokens,
        "target_tokens": target_tokens,
        "peak_bytes": sum(report["peak_bytes"] for report in reports),
        "rest_bytes": growth - STATE_BYTES * reports[0]["parameters"] * processes,
        "data_wait_share": reports[0]["data_wait_share"],
    }


def job_of(setting: Setting, split: BinarizedSplit, plan: Sequence[NDArray[np.int64]], choice: Choice) -> Job:
    """Return the job of training on the pairs of each update, with a known number of threads."""
    assert choice.threads is not None
    return Job(
        **{name: getattr(setting.size, name) for name in ("layers", "d_model", "d_ff", "heads", "dropout")},
        vocab_size=setting.vocab_size,
        tokens_per_update=setting.tokens_per_update,
        tokens_per_microbatch=setting.tokens_per_update // choice.microbatches,
        seed=SEED,
        updates=[cut(split, pairs, choice.microbatches) for pairs in plan],
        threads=choice.threads,
        attention=choice.attention,
    )


def run_processes(contender: Contender, job: Job, folder: Path, processes: int) -> list[dict[str, Any]]:
    """Run a job in the contender's environment and return the report of each process; its output is shown only if it fails."""
    job.write(folder)
    take_reports(folder)  # Of a run that failed.
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [str(contender.python), *torchrun, "-m", contender.module, str(folder)]
    done = subprocess.run(command, cwd=HERE, env=ON_CPU, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise ContenderFailed(f"{contender.name} ended with exit code {done.returncode}, its output is above")
    return take_reports(folder)


def random_split(setting: Setting, updates: int, folder: Path) -> BinarizedSplit:
    """Write and open a split of random pairs, enough for the updates."""
    count = max(LEAST_PAIRS, round(2 * updates * setting.tokens_per_update / setting.source_length))
    sources, targets = zip(*random_pairs(setting, count), strict=True)
    parts = [EncodedPairs.of(sources, targets, 1, setting.vocab_size, None)]
    write_split(folder / "train", parts, vocabulary_hash="0", vocab_size=setting.vocab_size, source="en", target="de")
    return open_split(folder / "train")


def random_pairs(setting: Setting, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield pairs of token ids with log-normal lengths, end tokens included."""
    random = np.random.default_rng(SEED)
    middle = np.log(setting.source_length) - setting.spread**2 / 2  # So that the mean is source_length.
    source_lengths = np.exp(random.normal(middle, setting.spread, count))
    target_lengths = source_lengths * TARGET_PER_SOURCE * np.exp(random.normal(0, RATIO_SPREAD, count))
    for lengths in zip(source_lengths, target_lengths, strict=True):
        source, target = (random.integers(FIRST_WORD, setting.vocab_size, min(max(round(length), 2), LONGEST) - 1) for length in lengths)
        yield [*source.tolist(), EOS], [*target.tolist(), EOS]


def plan(setting: Setting, split: BinarizedSplit, microbatches: int, updates: int) -> list[NDArray[np.int64]]:
    """Return the pairs of each of the first updates of our trainer's plan."""
    tokens = setting.tokens_per_update
    whole = BatchPlan(split.source.lengths, split.target.lengths, tokens, tokens // microbatches, SEED)
    return [np.concatenate(update.microbatches) for update in whole.epoch(0)[:updates]]


def cut(split: BinarizedSplit, pairs: NDArray[np.int64], parts: int) -> list[list[int]]:
    """Cut pairs in order of length into micro-batches with about the same number of target tokens."""
    longest = np.maximum(split.source.lengths[pairs], split.target.lengths[pairs])
    ordered = pairs[np.argsort(longest, kind="stable")]
    tokens = split.target.lengths[ordered].cumsum()
    ends = np.searchsorted(tokens, tokens[-1] * np.arange(1, parts) / parts)
    return [part.tolist() for part in np.split(ordered, ends)]


def flops(setting: Setting, source_tokens: pd.Series, target_tokens: pd.Series) -> pd.Series:
    """Return the FLOPs of runs: matrix products with parameters, forward and backward."""
    size, d = setting.size, setting.size.d_model
    attention, feed_forward, cross_keys_and_values = 4 * d * d, 2 * d * size.d_ff, 2 * d * d
    by_source = size.layers * (attention + feed_forward + cross_keys_and_values)
    by_target = size.layers * (2 * attention - cross_keys_and_values + feed_forward) + setting.vocab_size * d
    return 6.0 * (by_source * source_tokens + by_target * target_tokens)


def heading(device_name: str, results: dict[str, list[Run]], best: float, load: float) -> str:
    """Return the machine and the libraries in words; the load is the average of the minute before."""
    versions = {run["contender"]: run["versions"] for runs in results.values() for run in runs}
    libraries = "; ".join(f"{name}: {', '.join(f'{what} {which}' for what, which in own.items())}" for name, own in versions.items())
    product = f"Best 4096 x 4096 bf16 product: {best / 1e12:,.3g} TFLOP/s. Load before the first run: {load:.1f}."
    return f"{device_name}. {product}\n{libraries}."


def machine() -> str:
    """Return the processor in words."""
    known = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    flags = [flag for flag in CPU_FLAGS if flag in known]
    return f"{cpu_name()}, {default_threads(1)} cores, {', '.join(flags)}"


def section(name: str, setting: Setting, runs: list[Run], best: float) -> str:
    """Return a heading and a Markdown table with a row for each contender."""
    table = pd.DataFrame(runs)
    table["rate"] = table["target_tokens"] / table["seconds"]
    table["mfu"] = 100 * flops(setting, table["source_tokens"], table["target_tokens"]) / table["seconds"] / best
    ours = table[table["contender"] == OURS.name]
    rows = []
    for contender, own in table.groupby("contender", sort=False):
        waits = 100 * own["data_wait_share"].dropna()
        rows.append(
            {
                "contender": contender,
                "ran as: processes x threads, ...": described(own.iloc[0].to_dict()),
                "parameters": f"{own['parameters'].iloc[0]:,}",
                "target tok/s": spread(own["rate"], ",.0f"),
                "ours / this": "1" if contender == OURS.name else spread(ours["rate"].to_numpy() / own["rate"].to_numpy(), ".2f"),
                "MFU": spread(own["mfu"], ".1f") + "%",
                "data wait": spread(waits, ".2f") + "%" if len(waits) else "-",
                "peak memory, GB": spread(own["peak_bytes"] / 1e9, ".2f"),
                "the rest of it, GB": spread(own["rest_bytes"] / 1e9, ".2f"),
            }
        )
    size = setting.size
    source, target = (ours[f"{side}_tokens"].iloc[0] / ours["updates"].iloc[0] for side in ("source", "target"))
    return (
        f"## {name}: {size.layers}+{size.layers} layers, d_model {size.d_model:,}, d_ff {size.d_ff:,}, {size.heads} heads, "
        f"dropout {size.dropout}, V {setting.vocab_size:,}\n\n"
        f"Rounds: {len(ours)}, of {ours['updates'].iloc[0]} updates of {target:,.0f} target tokens and {source:,.0f} source tokens on "
        f"average; median (least-most) of the rounds.\n\n{markdown(pd.DataFrame(rows))}"
    )


if __name__ == "__main__":
    main()
