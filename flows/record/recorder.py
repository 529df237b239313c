"""What a training leaves for people to see: tables for DVC's plots, the journal for MLflow, and a line or bar on the terminal."""

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from tqdm import tqdm

from flows.process.paths import VALIDATION_SCORE
from flows.process.runner import say
from flows.record.journal import Journal
from transformer_core.training.records import Observer, UpdateRecord

UPDATES, VALIDATION, SKIPPED = "updates.csv", "validation.csv", "skipped.csv"
_SKIPPED_COLUMNS = ("update", "line")
_SECONDS_BETWEEN_LINES = 10.0


class Recorder(Observer):
    """An observer of the trainer (transformer_core/training/trainer.py) on rank 0.

    Args:
        directory: where the CSV files grow, beside the training's state.
        journal: the run's journal.
        updates: how many there will be.
        score: the name of the validations' score of outputs, `bleu` or `f1`.
    """

    def __init__(self, directory: Path, journal: Journal, updates: int, score: str) -> None:
        self._journal = journal
        self._score = score
        self._updates = _Table(directory / UPDATES, [field.name for field in fields(UpdateRecord)])
        self._validation = _Table(directory / VALIDATION, ("update", "nll", "perplexity", "accuracy", VALIDATION_SCORE, "seconds"))
        self._skipped = _Table(directory / SKIPPED, _SKIPPED_COLUMNS)
        self._tables = (self._updates, self._validation, self._skipped)
        self._terminal = _Terminal(updates)

    def begin(self) -> None:
        """Start all files anew; a resumed training calls `restore` instead."""
        for table in self._tables:
            table.begin()

    def on_update(self, record: UpdateRecord) -> None:
        values = asdict(record)
        self._updates.append(values)
        self._journal.metrics(record.update, {name: value for name, value in values.items() if name != "update"}, context="train")
        self._terminal.show(record)

    def on_skipped(self, update: int, lines: Sequence[int]) -> None:
        for line in lines:
            self._skipped.append({"update": update, "line": line})
        self._terminal.say(f"update {update:,}: the loss or a gradient is not finite, skipped; {SKIPPED} names its lines of data/clean")

    def on_validation(self, update: int, seconds: float, scores: dict[str, float]) -> None:
        self._validation.append({"update": update, **scores, VALIDATION_SCORE: scores[self._score], "seconds": seconds})
        self._journal.metrics(update, scores, context="valid")
        self._terminal.say(
            f"update {update:,}: valid PPL {scores['perplexity']:.2f}, {self._score.upper()} {scores[self._score]:.1f} (greedy)"
        )

    def state(self) -> dict[str, Any]:
        return {table.name: table.size_bytes for table in self._tables}

    def restore(self, state: dict[str, Any]) -> None:
        for table in self._tables:
            table.cut(state[table.name])

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._terminal.close()


class _Table:
    """A growing CSV file that can be cut back to where a saved state left it."""

    def __init__(self, path: Path, columns: tuple[str, ...] | list[str]) -> None:
        self._path = path
        self._columns = columns

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def size_bytes(self) -> int:
        return self._path.stat().st_size

    def begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(",".join(self._columns) + "\n", encoding="utf-8")

    def append(self, values: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([_rounded(values[column]) for column in self._columns])

    def cut(self, size_bytes: int) -> None:
        with self._path.open("r+b") as file:
            file.truncate(size_bytes)


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


class _Terminal:
    """One progress bar, or a plain line every few seconds where standard error is no terminal."""

    def __init__(self, updates: int) -> None:
        self._total = updates
        self._bar = tqdm(total=updates, unit="update", dynamic_ncols=True, leave=True) if sys.stderr.isatty() else None
        self._said = 0.0

    def show(self, record: UpdateRecord) -> None:
        numbers = (
            f"{record.tokens_per_second:,.0f} tok/s, loss {record.loss:.3f}, PPL {record.perplexity:.2f}, lr {record.learning_rate:.2e}"
        )
        if self._bar is not None:
            self._bar.set_postfix_str(numbers, refresh=False)
            self._bar.update(record.update - self._bar.n)
        elif time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES or record.update == self._total:
            self._said = time.monotonic()
            left = record.seconds / record.update * (self._total - record.update)
            self.say(f"update {record.update:,} of {self._total:,}: {numbers}, {_clock(left)} left")

    def say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            say(line, sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
