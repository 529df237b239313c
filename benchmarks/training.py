"""Training speed and memory of ours, Hugging Face's Marian and JoeyNMT, side by side: ``python benchmarks/training.py``.

    python -m venv joeynmt
    joeynmt/bin/pip install torch==2.13.0 joeynmt==2.3.0 sentencepiece==0.2.0 importlib_metadata
    python benchmarks/training.py --joeynmt-python joeynmt/bin/python --out results.md --json results.json

One architecture and the same updates for all, of made-up pairs: lengths as in Multi30k or WMT, tokens drawn evenly.
- Ours is the trainer of stage train as that stage runs it: on a CPU a process a core under torchrun, bf16 where the machine is fast at it.
- Hugging Face is `MarianMTModel` in a plain loop: the same precision, one process on all cores, PyTorch's own cross-entropy and Adam.
- JoeyNMT is its own model in its own training loop, in float32, which is all that it has on a CPU; one process on all cores. Dropout that
  the others do not have is off. On a GPU it is left out.
Our batch plan says which pairs make up an update. The peers get those as 1, 2 or 4 micro-batches, whichever is fastest for each, cut in
order of length, which leaves less padding than their own loaders would; ours gets the fastest of these too. Hugging Face's attention is
the faster of PyTorch's fused one, its default, and the written-out one, and the peers' threads are as many as the cores or half of them,
whichever is faster. Short runs before the first round settle all of that.

In each round each contender runs once, alone, in processes of its own: first a whole training for warm-up, then one with the clock
running. Both start from the same update, so that with no --warm-up no batch shape comes for the first time while the clock runs: kernels
are generated for each new one. Making batches out of token ids is timed, saving is not. The machine must do nothing else: threads of one
process wait for each other at every operation, so that other work slows them by far more than its share, ours by less.

MFU is 6 x parameters of matrix products x tokens (source tokens for the encoder and the decoder's keys and values of the source, target
tokens for all else; no padding; attention's own products left out) a second, by the machine's best 4096 x 4096 bf16 product of this run.
Data wait is the share of our time in which a process had no batch to go on with; the peers have theirs at hand from the start.
Memory on a CPU (Linux) is the peak resident set summed over a contender's processes, torchrun's included; on a GPU it is that of tensors.
The rest is what it has grown by since all imports, without 16 bytes a parameter and process: weights, gradients and Adam's two moments.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from peers.job import Job, Report

from transformer_core.config import Model
from transformer_core.corpus.batches import BatchPlan
from transformer_core.corpus.binarizing import EncodedPairs, write_split
from transformer_core.corpus.binary import BinarizedSplit, Meta, open_split, write_meta
from transformer_core.corpus.subword import EOS
from transformer_core.files import write_json
from transformer_core.presets import TransformerSize, resolve
from transformer_core.training.devices import default_devices, default_threads

SEED = 1
LEAST_PAIRS = 20_000
LONGEST = 100
TARGET_PER_SOURCE = 1.1
RATIO_SPREAD = 0.15
FIRST_WORD = EOS + 1
STATE_BYTES = 16
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Setting:
    """What is trained on what.

    Attributes:
        updates: how many are timed.
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


# By device; those run without --settings come first. The paper's updates are for a GPU: a CPU takes minutes for one.
SETTINGS = {
    "cpu": {
        "small": Setting("small", 8_000, 2_560, 16, 14, 0.35),
        "base": Setting("base", 37_000, 4_096, 6, 28, 0.55),
        "tiny": Setting("tiny", 2_000, 512, 5, 14, 0.35),
    },
    "cuda": {
        "base": Setting("base", 37_000, 25_000, 40, 28, 0.55),
        "big": Setting("big", 37_000, 25_000, 20, 28, 0.55),
    },
}
BY_DEFAULT = {"cpu": ["small", "base"], "cuda": ["base", "big"]}


@dataclass(frozen=True)
class Contender:
    """Who competes.

    Attributes:
        module: what its processes run.
        python: in which interpreter.
        attentions: the implementations it can choose from, its default first.
        threads: the numbers of threads it can choose from, the most first; None is what stage train would take.
    """

    name: str
    module: str
    python: Path
    attentions: tuple[str, ...]
    threads: tuple[int | None, ...]


OURS = Contender("ours", "peers.ours", Path(sys.executable), ("own",), (None,))


@dataclass(frozen=True)
class Choice:
    """What a contender may choose: into how many micro-batches an update is cut, the attention, how many threads."""

    microbatches: int
    attention: str
    threads: int | None


@dataclass(frozen=True)
class Run:
    """One run of a contender; of its processes the slowest one's time and everyone's memory."""

    contender: str
    round: int
    choice: Choice
    processes: int
    threads: int
    precision: str
    versions: dict[str, str]
    parameters: int
    updates: int
    seconds: float
    source_tokens: int
    target_tokens: int
    peak_bytes: int
    rest_bytes: int
    data_wait_share: float | None

    @property
    def rate(self) -> float:
        """Target tokens a second."""
        return self.target_tokens / self.seconds

    @property
    def described(self) -> str:
        """How it ran, in words."""
        attention = "" if self.choice.attention == "own" else f", {self.choice.attention} attention"
        batches = "whole updates" if self.choice.microbatches == 1 else f"{self.choice.microbatches} micro-batches"
        return f"{self.processes} x {self.threads}, {self.precision}, {batches}{attention}"


def main() -> None:
    """Run all settings, print the tables."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = arguments(device)
    load = os.getloadavg()[0]
    contenders = [OURS, *peers(device, options.joeynmt_python)]
    products: list[float] = []
    results: dict[str, list[Run]] = {}
    for name in options.settings:
        setting = SETTINGS[device][name]
        updates = options.updates or setting.updates
        results[name] = []
        with TemporaryDirectory() as folder:
            arena = Arena(setting, Path(folder), updates, min(options.warm_up or updates, updates))
            for contender in contenders:
                arena.let_choose(contender, options.microbatches)
            for number in range(1, options.rounds + 1):
                products.append(fastest_product())
                results[name] += [arena.run(contender, number) for contender in contenders]
    peak = max(products)
    parts = [heading(results, peak, load), *(section(name, SETTINGS[device][name], runs, peak) for name, runs in results.items())]
    if len(contenders) == 2:
        parts.append("JoeyNMT is left out: " + ("it is measured on a CPU alone." if device == "cuda" else "no --joeynmt-python was given."))
    text = "\n\n".join(parts) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    if options.json:
        raw = {name: [asdict(run) for run in runs] for name, runs in results.items()}
        write_json(options.json, {"machine": machine(), "load": load, "product_flops_per_second": products, "runs": raw})


def peers(device: str, joeynmt_python: Path | None) -> Iterator[Contender]:
    """Those who can run here."""
    cores = default_threads(1)
    threads = (cores,) if device == "cuda" or cores == 1 else (cores, cores // 2)
    yield Contender("Hugging Face", "peers.hugging_face", Path(sys.executable), ("sdpa", "eager"), threads)
    if joeynmt_python is not None and device == "cpu":
        # Not resolved: the link's own place is what makes it the interpreter of its environment.
        yield Contender("JoeyNMT", "peers.joey", joeynmt_python.absolute(), ("own",), threads)


def arguments(device: str) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS[device]), default=BY_DEFAULT[device])
    parser.add_argument("--joeynmt-python", metavar="PATH", type=Path, help="an interpreter that has joeynmt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, help="how many are timed; a setting has its own number")
    parser.add_argument("--warm-up", type=int, metavar="UPDATES", help="how many of them come once before; all where none is given")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[1, 2, 4], help="an update; to choose from")
    parser.add_argument("--out", type=Path, help="file for the tables")
    parser.add_argument("--json", type=Path, help="file for the raw figures")
    return parser.parse_args()


class ContenderFailed(SystemExit):
    """A contender's process ended badly and its output has been shown; where nobody minds, the benchmark ends with one line."""


class Arena:
    """One setting's pairs and updates, and what each contender has chosen.

    Args:
        folder: an empty one, for all files.
        updates: how many are timed.
        warm_up: how many of these come once before.
    """

    def __init__(self, setting: Setting, folder: Path, updates: int, warm_up: int) -> None:
        self._setting = setting
        self._folder = folder
        self._updates = updates
        self._warm_up = warm_up
        self._choices: dict[Contender, Choice] = {}
        self._tried: dict[tuple[Contender, Choice], float] = {}
        pairs = max(LEAST_PAIRS, round(2 * updates * setting.tokens_per_update / setting.source_length))
        sources, targets = zip(*made_up_pairs(setting, pairs), strict=True)
        counts = write_split(folder / "train", [EncodedPairs.of(sources, targets, 1, setting.vocab_size, None)])
        write_meta(folder, Meta(vocabulary_hash="0", vocab_size=setting.vocab_size, source="en", target="de", splits={"train": counts}))
        self._split = open_split(folder, "train")

    def let_choose(self, contender: Contender, microbatches: Sequence[int]) -> None:
        """Settle what is fastest for a contender in short runs; ours is asked first, for its plan makes everyone's updates."""
        choice = Choice(microbatches[0], contender.attentions[0], contender.threads[0])
        choice = self._fastest(contender, [replace(choice, threads=count) for count in contender.threads])
        choice = self._fastest(contender, [replace(choice, microbatches=count) for count in microbatches])
        self._choices[contender] = self._fastest(contender, [replace(choice, attention=name) for name in contender.attentions])

    def _fastest(self, contender: Contender, rivals: Sequence[Choice]) -> Choice:
        if len(rivals) == 1:
            return rivals[0]
        for choice in rivals:
            if (contender, choice) not in self._tried:
                self._tried[contender, choice] = self._try(contender, choice)
        return max(rivals, key=lambda choice: self._tried[contender, choice])

    def _try(self, contender: Contender, choice: Choice) -> float:
        few = max(2, self._updates // 4)
        try:
            return self._run(contender, choice, 0, few, few).rate
        except ContenderFailed as error:  # Some machines have not the memory for every choice.
            print(f"{error}: not chosen", file=sys.stderr, flush=True)
            return 0.0

    def run(self, contender: Contender, number: int) -> Run:
        """A contender's run in a round."""
        return self._run(contender, self._choices[contender], number, self._updates, self._warm_up)

    def _run(self, contender: Contender, choice: Choice, number: int, updates: int, warm_up: int) -> Run:
        plan = self._plan(choice if contender == OURS else self._choices[OURS], updates)
        source_tokens = sum(int(self._split.source.lengths[pairs].sum()) for pairs in plan)
        target_tokens = sum(int(self._split.target.lengths[pairs].sum()) for pairs in plan)
        processes = default_devices(choice.microbatches) if contender == OURS and not torch.cuda.is_available() else 1
        job = self._job(choice, plan, warm_up, choice.threads or default_threads(processes))
        reports = run_processes(contender, job, self._folder, processes)
        if any(report.target_tokens != target_tokens for report in reports):
            raise RuntimeError(f"{contender.name} counted {reports[0].target_tokens} target tokens, not {target_tokens}")
        parameters = reports[0].parameters
        grown = sum(report.peak_bytes - report.before_bytes for report in reports)
        run = Run(
            contender=contender.name,
            round=number,
            choice=choice,
            processes=processes,
            threads=job.threads,
            precision=reports[0].precision,
            versions=reports[0].versions,
            parameters=parameters,
            updates=updates,
            seconds=max(report.seconds for report in reports),
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            peak_bytes=sum(report.peak_bytes for report in reports),
            rest_bytes=grown - STATE_BYTES * parameters * processes,
            data_wait_share=reports[0].data_wait_share,
        )
        what = f"round {number}" if number else "trial"
        print(
            f"{self._setting.preset}, {what}, {contender.name}, {run.described}: {run.rate:,.0f} target tok/s", file=sys.stderr, flush=True
        )
        return run

    def _plan(self, ours: Choice, updates: int) -> list[NDArray[np.int64]]:
        """The pairs of the first updates of our trainer's plan."""
        tokens = self._setting.tokens_per_update
        lengths = (self._split.source.lengths, self._split.target.lengths)
        plan = BatchPlan(*lengths, tokens, tokens // ours.microbatches, SEED)
        return [np.concatenate(update.microbatches) for update in plan.epoch(0)[:updates]]

    def _job(self, choice: Choice, plan: Sequence[NDArray[np.int64]], warm_up: int, threads: int) -> Job:
        size, tokens = self._setting.size, self._setting.tokens_per_update
        return Job(
            layers=size.layers,
            d_model=size.d_model,
            d_ff=size.d_ff,
            heads=size.heads,
            dropout=size.dropout,
            vocab_size=self._setting.vocab_size,
            tokens_per_update=tokens,
            tokens_per_microbatch=tokens // choice.microbatches,
            seed=SEED,
            updates=[cut(self._split, pairs, choice.microbatches) for pairs in plan],
            warm_up=warm_up,
            threads=threads,
            attention=choice.attention,
        )


def made_up_pairs(setting: Setting, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of token ids with log-normal lengths, end tokens included."""
    random = np.random.default_rng(SEED)
    middle = np.log(setting.source_length) - setting.spread**2 / 2  # So that the mean is source_length.
    source_lengths = np.exp(random.normal(middle, setting.spread, count))
    target_lengths = source_lengths * TARGET_PER_SOURCE * np.exp(random.normal(0, RATIO_SPREAD, count))
    for lengths in zip(source_lengths, target_lengths, strict=True):
        source, target = (random.integers(FIRST_WORD, setting.vocab_size, min(max(round(length), 2), LONGEST) - 1) for length in lengths)
        yield [*source.tolist(), EOS], [*target.tolist(), EOS]


def cut(split: BinarizedSplit, pairs: NDArray[np.int64], parts: int) -> list[list[int]]:
    """Pairs in order of length as so many micro-batches of about as many target tokens."""
    longest = np.maximum(split.source.lengths[pairs], split.target.lengths[pairs])
    ordered = pairs[np.argsort(longest, kind="stable")]
    tokens = split.target.lengths[ordered].cumsum()
    ends = np.searchsorted(tokens, tokens[-1] * np.arange(1, parts) / parts)
    return [part.tolist() for part in np.split(ordered, ends)]


def run_processes(contender: Contender, job: Job, folder: Path, processes: int) -> list[Report]:
    """Have a contender do a job; what it prints is shown only where it fails."""
    job.write(folder)
    Report.take_all(folder)  # What a run that failed has left.
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [str(contender.python), *torchrun, "-m", contender.module, str(folder)]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise ContenderFailed(f"{contender.name} ended with exit code {done.returncode}, its output is above")
    return Report.take_all(folder)


def fastest_product() -> float:
    """The machine's best rate at 4096 x 4096 bf16 products, FLOP/s."""
    return float(subprocess.run([sys.executable, "-m", "peers.matmul"], cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout)


def flops(setting: Setting, run: Run) -> float:
    """Of the matrix products of a run with parameters, forward and backward."""
    size, d = setting.size, setting.size.d_model
    attention, feed_forward = 4 * d * d, 2 * d * size.d_ff
    cross_keys_and_values = 2 * d * d
    by_source = size.layers * (attention + feed_forward + cross_keys_and_values)
    by_target = size.layers * (2 * attention - cross_keys_and_values + feed_forward) + setting.vocab_size * d
    return 6.0 * (by_source * run.source_tokens + by_target * run.target_tokens)


def heading(results: dict[str, list[Run]], peak: float, load: float) -> str:
    """The machine and what ran on it; the load is the average of the minute before."""
    versions = {run.contender: run.versions for runs in results.values() for run in runs}
    libraries = "; ".join(f"{name}: {', '.join(f'{what} {which}' for what, which in own.items())}" for name, own in versions.items())
    best = f"Best 4096 x 4096 bf16 product: {peak / 1e12:,.3g} TFLOP/s. Load before the first run: {load:.1f}."
    return f"{machine()}. {best}\n{libraries}."


def machine() -> str:
    """The processor, in words."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = [flag for flag in CPU_FLAGS if flag in facts.get("flags", "").split()]
    return f"{facts.get('model name', 'CPU')}, {default_threads(1)} cores, {', '.join(flags)}"


def section(name: str, setting: Setting, runs: list[Run], peak: float) -> str:
    """A heading and a Markdown table: a row a contender."""
    size, first = setting.size, runs[0]
    by_contender: dict[str, list[Run]] = {}
    for run in runs:
        by_contender.setdefault(run.contender, []).append(run)
    ours = by_contender[OURS.name]
    head = [
        "contender",
        "ran as: processes x threads, ...",
        "parameters",
        "target tok/s",
        "ours / this",
        "MFU",
        "data wait",
        "peak memory, GB",
        "the rest of it, GB",
    ]
    rows = [head, ["---"] * len(head)]
    for contender, own in by_contender.items():
        rows.append(
            [
                contender,
                own[0].described,
                f"{own[0].parameters:,}",
                spread([run.rate for run in own], ",.0f"),
                spread([mine.rate / run.rate for mine, run in zip(ours, own, strict=True)], ".2f") if own is not ours else "1",
                spread([100 * flops(setting, run) / run.seconds / peak for run in own], ".1f") + "%",
                percentages([run.data_wait_share for run in own]),
                spread([run.peak_bytes / 1e9 for run in own], ".2f"),
                spread([run.rest_bytes / 1e9 for run in own], ".2f"),
            ]
        )
    lines = [
        f"## {name}: {size.layers}+{size.layers} layers, d_model {size.d_model:,}, d_ff {size.d_ff:,}, {size.heads} heads, dropout "
        f"{size.dropout}, V {setting.vocab_size:,}",
        "",
        f"Rounds: {len(ours)}, of {first.updates} updates of {first.target_tokens / first.updates:,.0f} target tokens and "
        f"{first.source_tokens / first.updates:,.0f} source tokens on average; median (least-most) of the rounds.",
        "",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines)


def percentages(shares: Sequence[float | None]) -> str:
    """Their spread in per cent; a dash where they are not known."""
    known = [100 * share for share in shares if share is not None]
    return spread(known, ".2f") + "%" if known else "-"


def spread(values: Sequence[float], form: str) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


if __name__ == "__main__":
    main()
