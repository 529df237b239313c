"""Progress of a training: a bar if standard error is a terminal, else a line every ten seconds.

With several ranks, rank 0 writes lines to a pipe; the stage reads them and draws the bar (`RankOutput`).
"""

import os
import re
import sys
import time
from contextlib import suppress
from typing import Any

from tqdm import tqdm

from flows.process.runner import echo

SECONDS_BETWEEN_LINES = 10.0
# Environment variable: the seconds between the lines of rank 0, if they are drawn as a bar.
SECONDS_FOR_BAR = "TRANSFORMER_SECONDS_BETWEEN_LINES"
_DRAWN_SECONDS = 0.2
_LINE = re.compile(r"update ([\d,]+) of ([\d,]+)(?:: (.*))?")
_RESUMED = "going on after update "


def updates_in(line: str) -> tuple[int, int, str] | None:
    """Return the updates done, those of the whole training, and the metrics in a line of `ProgressLines`; None for another line."""
    found = _LINE.fullmatch(line)
    return found and (int(found[1].replace(",", "")), int(found[2].replace(",", "")), found[3] or "")


def resumed_line(update: int) -> str:
    """Return the line of a training that goes on from a saved update."""
    return f"{_RESUMED}{update:,}"


def update_resumed(line: str) -> int | None:
    """Return the update in a `resumed_line`; None for another line."""
    number = line.removeprefix(_RESUMED).replace(",", "")
    return int(number) if line.startswith(_RESUMED) and number.isdecimal() else None


def progress() -> "Bar | ProgressLines":
    """Return what shows a training on standard error."""
    return Bar() if sys.stderr.isatty() else ProgressLines()


class ProgressLines:
    """A line every few seconds, after an update."""

    def __init__(self) -> None:
        self._seconds = float(os.environ.get(SECONDS_FOR_BAR, SECONDS_BETWEEN_LINES))
        self._written = -self._seconds

    def show(self, update: int, updates: int, metrics: str) -> None:
        """Show an update, the number of all, and the latest metrics, which are empty at first."""
        if update == updates or time.monotonic() - self._written >= self._seconds:
            self._written = time.monotonic()
            self.write(f"update {update:,} of {updates:,}{metrics and f': {metrics}'}")

    def write(self, line: str) -> None:
        """Write another line."""
        echo(line, sys.stderr)

    def close(self) -> None:
        """Nothing is left to be done."""


class Bar:
    """A bar below all other lines. It begins with the first update that is shown.

    A terminal that has been closed ends no training: what cannot be drawn is left out.
    """

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def show(self, update: int, updates: int, metrics: str) -> None:
        """Show an update, the number of all, and the latest metrics, which are empty at first."""
        with suppress(OSError):
            if self._bar is None:
                layout = "{percentage:3.0f}% {bar} {n_fmt} of {total_fmt} updates, {elapsed}{postfix}"
                self._bar = tqdm(total=updates, initial=update - 1, bar_format=layout, dynamic_ncols=True, file=sys.stderr)
            self._bar.set_postfix_str(metrics, refresh=False)
            self._bar.update(update - self._bar.n)

    def write(self, line: str) -> None:
        """Write a line above the bar."""
        if self._bar is None:
            echo(line, sys.stderr)
        else:
            with suppress(OSError):
                self._bar.write(line, file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()


class RankOutput:
    """The output of ranks, line by line, with a bar instead of their lines for updates where standard error is a terminal."""

    def __init__(self) -> None:
        self._bar = Bar()
        self.environment = {SECONDS_FOR_BAR: str(_DRAWN_SECONDS)} if sys.stderr.isatty() else {}

    def __call__(self, line: str) -> None:
        found = updates_in(line) if self.environment else None
        if found is None:
            self._bar.write(line)
        else:
            self._bar.show(*found)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
