"""The parts that the benchmarks share: command line, rounds, tables."""

import argparse
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pandas as pd

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
