"""The parts that the benchmarks share: command line, rounds, tables, settings of a pipeline, plots."""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from transformer_core import recipes
from transformer_core.config import parse_yaml, yaml_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """Write params.yaml, the recipe `synthetic` with changes by section, and its corpus of generated pairs, counted by split."""
    params: dict[str, Any] = parse_yaml(recipes.read("synthetic"), "synthetic")
    for section, values in {"download": {"corpus": "generated"}, **changes}.items():
        params[section] |= values
    (folder / "params.yaml").write_text(yaml_text(params), encoding="utf-8")
    splits = {split: [{"synthetic": {"pairs": count, "seed": 1}}] for split, count in pairs.items()}
    entry = {"name": "generated", "languages": ["en", "de"], "licence": None, "note": "", "synthetic": True, "splits": splits}
    (folder / "corpora").mkdir(exist_ok=True)
    (folder / "corpora/generated.yaml").write_text(yaml_text(entry), encoding="utf-8")


def run_stages(stages: Sequence[str], folder: Path) -> None:
    """Run stages of the pipeline as `dvc repro` runs them, each in its own process."""
    for stage in stages:
        command = [sys.executable, "-m", "flows.stages", stage]
        subprocess.run(command, cwd=folder, env=STAGE_ENVIRONMENT, check=True, stdout=sys.stderr)


@contextmanager
def svg_figure(path: Path, panels: int = 1, size: tuple[float, float] = (9, 4.2)) -> Iterator[tuple["Figure", list[Any]]]:
    """Yield a figure and its panels side by side, then write it; the same drawing makes the same file."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(ncols=panels, squeeze=False)[0].tolist()
    yield figure, axes
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "benchmarks"}):
        figure.savefig(path, metadata={"Date": None})
