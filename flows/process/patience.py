"""When to try again what has failed in passing: after growing pauses, until it has failed for hours without progress."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from flows.process.exits import TRANSIENT
from flows.process.runner import StageError
from transformer_core.errors import UserError

Result = TypeVar("Result")
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
_JITTER = 0.5


class Patience:
    """The patience with one thing that is tried: it is over `hours` after the first failure, and anew with each progress.

    `chance` gives numbers from 0 to 1, so that those who fail together do not come back together. The last try is when patience is over.
    """

    def __init__(self, hours: float, clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random) -> None:
        self._seconds = 3600 * hours
        self._clock, self._chance = clock, chance
        self._tries, self._failing_since, self._progress = 0, 0.0, 0

    def retry(self, attempt: Callable[[], Result], tell: Callable[[str], None], progress: Callable[[], int] = lambda: 0) -> Result:
        """Return the result of an attempt that succeeds. Raises the `UserError` or `StageError` of the last; `tell` gets those before."""
        while True:
            try:
                return attempt()
            except (UserError, StageError) as error:
                pause = self.pause_after(error.exit_code, progress())
                if pause is None:
                    raise
                tell(f"{str(error).rstrip('.')}. Trying again in {pause:.0f} seconds")
            time.sleep(pause)

    def pause_after(self, code: int, progress: int = 0) -> float | None:
        """Return the seconds until the next try after a failure; None if no try would help, or patience is over.

        `progress` is a number that a try increases by its progress, such as the update from which it went on.
        """
        if code not in TRANSIENT:
            return None
        if not self._tries or progress > self._progress:
            self._tries, self._failing_since, self._progress = 0, self._clock(), progress
        self._tries += 1
        left = self._seconds - (self._clock() - self._failing_since)
        if left <= 0:
            return None
        growing = FIRST_PAUSE * 2.0 ** min(self._tries - 1, 10)
        return min(min(growing, LONGEST_PAUSE) * (1 - _JITTER * self._chance()), left)
