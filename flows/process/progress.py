"""Progress of a training on standard error: a bar if that is a terminal, else a line a minute, which a flow passes on."""

import re
import sys
import time
from contextlib import suppress
from math import inf
from typing import Any

from tqdm import tqdm

from flows.process.runner import echo

SECONDS_BETWEEN_LINES = 60.0
_RESUMED = re.compile(r"going on after update ([\d,]+)")


def resumed_line(update: int) -> str:
    """Return the line of a training that goes on from a saved update."""
    return f"going on after update {update:,}"


def update_resumed(line: str) -> int | None:
    """Return the update in a `resumed_line`; None for another line."""
    found = _RESUMED.fullmatch(line)
    return found and int(found[1].replace(",", ""))


class Progress:
    """A bar below all other lines, which begins with the first update that is shown, or a line a minute, after an update.

    A terminal that has been closed ends no training: what cannot be drawn is left out.
    """

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._bar: tqdm[Any] | None = None
        self._written = -inf

    def show(self, update: int, updates: int, metrics: str) -> None:
        """Show an update, the number of all, and the latest metrics, which are empty at first."""
        if not self._on_terminal:
            if update == updates or time.monotonic() - self._written >= SECONDS_BETWEEN_LINES:
                self._written = time.monotonic()
                self.write(f"update {update:,} of {updates:,}{metrics and f': {metrics}'}")
            return
        with suppress(OSError):
            if self._bar is None:
                layout = "{percentage:3.0f}% {bar} {n_fmt} of {total_fmt} updates, {elapsed}{postfix}"
                self._bar = tqdm(total=updates, initial=update - 1, bar_format=layout, dynamic_ncols=True, file=sys.stderr)
            self._bar.set_postfix_str(metrics, refresh=False)
            self._bar.update(update - self._bar.n)

    def write(self, line: str) -> None:
        """Write another line, above the bar if there is one."""
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
