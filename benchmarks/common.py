"""The parts that the benchmarks share: command line, random sentences, the table."""

import argparse
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from peers.job import Setting

from transformer_core.corpus.tokens.subword import EOS
from transformer_core.presets import BASE, BIG, SMALL, TINY
from transformer_core.processes import cores, cpu_name

SEED = 1
LONGEST = 100
TARGET_PER_SOURCE, RATIO_SPREAD = 1.1, 0.15

# Lengths as in Multi30k (small, tiny) and WMT. A GPU has the paper's updates: a CPU takes minutes for one.
SETTINGS = {
    "small": Setting(SMALL, 8_000, 2_560, 16, 14, 0.35),
    "base": Setting(BASE, 37_000, 4_096, 6, 28, 0.55),
    "tiny": Setting(TINY, 2_000, 512, 5, 14, 0.35),
    "gpu-base": Setting(BASE, 37_000, 25_000, 20, 28, 0.55, (1,)),
    "gpu-big": Setting(BIG, 37_000, 25_000, 20, 28, 0.55, (1,)),
}


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring as it is."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="CSV file for the table")
    return parser


def random_pairs(setting: Setting, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield pairs of token ids with log-normal lengths, end tokens included."""
    random = np.random.default_rng(SEED)
    middle = np.log(setting.source_length) - setting.spread**2 / 2  # So that the mean is source_length.
    source_lengths = np.exp(random.normal(middle, setting.spread, count))
    target_lengths = source_lengths * TARGET_PER_SOURCE * np.exp(random.normal(0, RATIO_SPREAD, count))
    for lengths in zip(source_lengths, target_lengths, strict=True):
        source, target = (random.integers(EOS + 1, setting.vocab_size, min(max(round(length), 2), LONGEST) - 1) for length in lengths)
        yield [*source.tolist(), EOS], [*target.tolist(), EOS]


def report(runs: Sequence[dict[str, Any]], keys: list[str], out: Path | None) -> None:
    """Print the median, the least and the greatest value of each figure over the runs with the same keys; write them as CSV."""
    table = pd.DataFrame(runs).groupby(keys, sort=False).agg(["median", "min", "max"])
    table.columns = pd.Index([name if which == "median" else f"{name} {which}" for name, which in table.columns])
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cpu_name()}, {cores()} cores"
    print(f"{device}; torch {torch.__version__}, transformers {version('transformers')}")
    print(table.round(2).reset_index().to_string(index=False))
    if out:
        table.to_csv(out)
