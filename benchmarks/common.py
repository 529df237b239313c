"""The parts that the benchmarks share: command line, rounds, tables, settings of a pipeline, plots."""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from transformer_core import recipes
from transformer_core.corpus.sources.catalogue import PACKAGED_ENTRIES
from transformer_core.corpus.sources.formats import file_lines
from transformer_core.yaml_io import parse_yaml, yaml_text

if TYPE_CHECKING:
    pass

ROOT = Path(__file__).parents[1]
DATA_STAGES = ("download", "clean", "bpe", "binarize")
STAGE_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

Name = TypeVar("Name", bound=Hashable)
Result = TypeVar("Result")


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring as it is."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def in_turn(runs: Mapping[Name, Callable[[], Result]], rounds: int) -> dict[Name, list[Result]]:
    """Return the results of each run, one a round; in a round all run in turn, so that noise meets all of them."""
    results: dict[Name, list[Result]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            results[name].append(run())
    return results


def fastest(choices: Sequence[Name], rate: Callable[[Name], float]) -> Name:
    """Return the choice with the greatest rate; rates are not measured where all choices are the same."""
    return max(choices, key=rate) if len(set(choices)) > 1 else choices[0]


def spread(values: Sequence[float] | pd.Series, form: str) -> str:
    """Format the median, and in brackets the least and the greatest value."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def markdown(table: pd.DataFrame) -> str:
    """Format a table, without its index, as Markdown."""
    rows = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in rows)


def write_report(parts: Sequence[str], path: Path | None) -> None:
    """Print parts of Markdown with an empty line between them, and write them into a file if one is given."""
    text = "\n\n".join(parts) + "\n"
    print(text, end="")
    if path:
        path.write_text(text, encoding="utf-8")


def write_params(folder: Path, pairs: Mapping[str, int], **changes: Mapping[str, object]) -> None:
    """Write params.yaml, the default recipe with changes by section, and a corpus of random words, its pairs counted by split."""
    params: dict[str, Any] = parse_yaml(recipes.read("tatoeba"), "tatoeba")
    for section, values in {"download": {"corpus": "random"}, **changes}.items():
        params[section] |= values
    (folder / "params.yaml").write_text(yaml_text(params), encoding="utf-8")
    entry = {"name": "random", "languages": ["en", "de"], "licence": None, "note": "", "splits": {}}
    (folder / "corpora").mkdir(exist_ok=True)
    for number, (split, count) in enumerate(pairs.items()):
        files = {language: {"path": f"{split}.{language}"} for language in ("en", "de")}
        entry["splits"] |= {split: [{"files": files}]}
        for side, language in enumerate(files):
            write_random_lines(folder / f"corpora/{split}.{language}", count, seed=2 * number + side)
    (folder / "corpora/random.yaml").write_text(yaml_text(entry), encoding="utf-8")


def english_sentences(split: str) -> list[str]:
    """Return the English side of a split of the bundled corpus."""
    path = PACKAGED_ENTRIES / f"tatoeba/{split}.tsv.xz"
    return [line.decode() for line in file_lines(path, column=1)]


def write_random_lines(path: Path, count: int, seed: int) -> None:
    """Write lines of 5 to 40 random words out of 20,000, of 2 to 9 letters, the frequent ones first as in a language (Zipf)."""
    draw = np.random.default_rng(seed)
    words = ["".join(draw.choice(list("abcdefghijklmnoprstuwz"), size)) for size in draw.integers(2, 10, 20_000)]
    with path.open("w", encoding="utf-8") as file:
        for length in draw.integers(5, 41, count):
            file.write(" ".join(words[min(rank, len(words)) - 1] for rank in draw.zipf(1.2, length)) + "\n")


def run_stages(stages: Sequence[str], folder: Path) -> None:
    """Run stages of the pipeline as `dvc repro` runs them, each in its own process."""
    for stage in stages:
        command = [sys.executable, "-m", "flows.stages", stage]
        subprocess.run(command, cwd=folder, env=STAGE_ENVIRONMENT, check=True, stdout=sys.stderr)
