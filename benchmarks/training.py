"""Training speed and memory of this project beside others, on a GPU if there is one: ``python benchmarks/training.py``.

    python benchmarks/training.py --out results.csv

All train one architecture with the same updates of random pairs: lengths as in Multi30k or WMT, tokens drawn uniformly.
- Ours is the trainer of stage train as that stage runs it: on a CPU a process for each core under torchrun; bf16 if the machine has it.
- Hugging Face is `MarianMTModel` in a plain loop: the same precision, one process, PyTorch's own cross-entropy and Adam.
- torch.nn.Transformer, with compiled layers, is in the same loop.
Our batch plan defines the pairs of an update. On a CPU the peers get those as 1, 2 or 4 micro-batches, whichever is fastest for each, cut
in order of length, which leaves less padding than their own loaders would; ours gets the fastest of these too. Hugging Face's attention
is the faster of PyTorch's fused one and the eager one there. Short trials before the first round make these choices.

In each round each contender runs once, alone, in its own processes: first a whole training for warm-up, then one that is timed. Both start
from the same update, so that no batch shape is new while the clock runs. Making batches out of token ids is timed, saving is not. Run
nothing else on the machine: threads of one process wait for each other at every operation, so that other work slows the peers by far more
than its share, ours by less.

MFU is 6 x parameters of matrix products x tokens (source tokens for the encoder and the decoder's keys and values of the source, target
tokens for all else; without padding and without attention's own products) a second, by the machine's best product of large bf16 matrices.
Memory is the peak of the resident set, summed over a contender's processes, or of the GPU's.
"""

import argparse
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from common import SEED, SETTINGS, Setting, command_line, random_pairs, report
from numpy.typing import NDArray
from peers.job import JOB, Job

from transformer_core.corpus.tokens.batches import BatchPlan
from transformer_core.corpus.tokens.binarizing import EncodedPairs, write_split
from transformer_core.corpus.tokens.binary import BinarizedSplit, open_split
from transformer_core.models.architectures import build, flops_a_token
from transformer_core.training.devices import Rank, default_devices, default_threads, matrix_rate

LEAST_PAIRS = 20_000
ON_GPU = torch.cuda.is_available()


class Contender(NamedTuple):
    """An implementation: the program of its processes, and implementations of attention to choose from."""

    name: str
    module: str
    attentions: tuple[str, ...] = ("own",)


OURS = Contender("ours", "peers.ours")
Choice = tuple[int, str]  # Micro-batches of an update, attention.
PEERS = (
    Contender("Hugging Face", "peers.hugging_face", ("sdpa",) if ON_GPU else ("sdpa", "eager")),
    Contender("torch.nn.Transformer, compiled", "peers.plain_torch"),
)


def main() -> None:
    """Run all settings, print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["gpu-base", "gpu-big"] if ON_GPU else ["small", "base"])
    parser.add_argument("--updates", type=int, help="number of timed updates; by default that of the setting")
    options = parser.parse_args()
    runs = []
    for name in options.settings:
        print(f"{name}:", file=sys.stderr)
        with TemporaryDirectory() as folder:
            runs += [{"model": name, **run} for run in measured(SETTINGS[name], options, Path(folder))]
    report(runs, ["model", "contender", "ran as", "parameters"], options.out)


def measured(setting: Setting, options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the runs of all rounds of a setting, on a split of random pairs that are enough for the updates."""
    timed = options.updates or setting.updates
    count = max(LEAST_PAIRS, round(2 * timed * setting.tokens_per_update / setting.source_length))
    sources, targets = zip(*random_pairs(setting, count), strict=True)
    parts = [EncodedPairs.of(sources, targets, 1, setting.vocab_size, None)]
    write_split(folder / "train", parts, vocabulary_hash="0", vocab_size=setting.vocab_size, source="en", target="de")
    split = open_split(folder / "train")
    chosen: dict[Contender, Choice] = {}

    def run(contender: Contender, choice: Choice, updates: int) -> dict[str, Any]:
        ours, _ = chosen.get(OURS, choice)  # Our plan makes everyone's updates.
        tokens = setting.tokens_per_update
        plan = BatchPlan(split.source.lengths, split.target.lengths, tokens, tokens // ours, SEED).epoch(0)
        pairs = [np.concatenate(update.microbatches) for update in plan[:updates]]
        own = run_contender(contender, choice, setting, split, pairs, folder)
        print(f"{contender.name}, {own['ran as']}: {own['target tok/s']:,.0f} target tok/s", file=sys.stderr, flush=True)
        return own

    for contender in (OURS, *PEERS):
        choices = [(count, attention) for attention in contender.attentions for count in setting.microbatches]
        rates = [run(contender, choice, max(2, timed // 4))["target tok/s"] for choice in choices if len(choices) > 1]
        chosen[contender] = choices[int(np.argmax(rates or [0]))]
    for _ in range(options.rounds):
        best = matrix_rate(Rank(0, 1, torch.device("cuda" if ON_GPU else "cpu")), "bf16")
        ours = 0.0
        for contender, choice in chosen.items():
            own = run(contender, choice, timed)
            ours = ours or own["target tok/s"]
            mfu = 100 * own.pop("flops a second") / best
            yield {**own, "ours / this": ours / own["target tok/s"], "MFU, %": mfu}


def run_contender(
    contender: Contender, choice: Choice, setting: Setting, split: BinarizedSplit, updates: Sequence[NDArray[np.int64]], folder: Path
) -> dict[str, Any]:
    """Run a contender once on the pairs of each update: the time of its slowest process and the memory of all."""
    microbatches, attention = choice
    processes = default_devices(microbatches) if contender == OURS else 1
    cuts = [cut(split, pairs, microbatches) for pairs in updates]
    job = Job(setting, microbatches, SEED, cuts, default_threads(processes), attention)
    (folder / JOB).write_bytes(pickle.dumps(job))
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *torchrun, "-m", contender.module, str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        raise SystemExit(f"{done.stdout}{contender.name} ended with exit code {done.returncode}, its output is above")
    reports = [json.loads((folder / f"report-{rank}.json").read_text(encoding="utf-8")) for rank in range(processes)]
    tokens = [int(side.lengths[np.concatenate(updates)].sum()) for side in (split.source, split.target)]
    if any(report["target_tokens"] != tokens[1] for report in reports):
        raise SystemExit(f"{contender.name} counted {reports[0]['target_tokens']} target tokens, not {tokens[1]}")
    with torch.device("meta"):
        flops = flops_a_token(build(setting.size, setting.vocab_size))
    seconds = max(report["seconds"] for report in reports)
    with_attention = "" if attention == "own" else f", {attention} attention"
    return {
        "contender": contender.name,
        "ran as": f"{processes} x {job.threads}, {reports[0]['precision']}, micro-batches {microbatches}{with_attention}",
        "parameters": reports[0]["parameters"],
        "target tok/s": tokens[1] / seconds,
        "flops a second": sum(each * count for each, count in zip(flops, tokens, strict=True)) / seconds,
        "peak memory, GB": sum(report["peak_bytes"] for report in reports) / 1e9,
    }


def cut(split: BinarizedSplit, pairs: NDArray[np.int64], parts: int) -> list[list[int]]:
    """Cut pairs in order of length into micro-batches with about the same number of target tokens."""
    ordered = pairs[np.argsort(np.maximum(split.source.lengths[pairs], split.target.lengths[pairs]), kind="stable")]
    tokens = split.target.lengths[ordered].cumsum()
    return [part.tolist() for part in np.split(ordered, np.searchsorted(tokens, tokens[-1] * np.arange(1, parts) / parts))]


if __name__ == "__main__":
    main()
