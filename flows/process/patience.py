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


def retry(hours: float, attempt: Callable[[], Result], tell: Callable[[str], None], progress: Callable[[], int] = lambda: 0) -> Result:
    """Return the result of an attempt that succeeds. Patience is over `hours` after the first failure, and anew with each progress.

    `progress` gives a number that a try increases by its progress, such as the update from which it went on. The last try is when patience
    is over. Pauses vary by half, so that those who fail together do not come back together.

    Raises the `UserError` or `StageError` of the last try, or of one that no other would help; `tell` gets those before.
    """
    tries, failing_since, reached = 0, 0.0, 0
    while True:
        try:
            return attempt()
        except (UserError, StageError) as error:
            if not tries or progress() > reached:
                tries, failing_since, reached = 0, time.monotonic(), progress()
            tries += 1
            left = 3600 * hours - (time.monotonic() - failing_since)
            if error.exit_code not in TRANSIENT or left <= 0:
                raise
            growing = min(FIRST_PAUSE * 2.0 ** min(tries - 1, 10), LONGEST_PAUSE)
            pause = min(growing * (1 - _JITTER * random.random()), left)
            tell(f"{str(error).rstrip('.')}. Trying again in {pause:.0f} seconds")
        time.sleep(pause)
