"""What a stage says, as a scheduler shows it: its lines in a log, the updates of a training thinned out there and as a bar."""

import re
import time
from collections.abc import Callable

SECONDS_BETWEEN_UPDATES = 60.0
_UPDATE = re.compile(r"update ([\d,]+) of ([\d,]+): ")  # How flows/record/recorder.py says it, every ten seconds.


class StageLog:
    """Takes the lines of a stage one by one.

    Of a training's updates one a minute and the last go to the log; all of them move the bar.

    Args:
        say: writes a line to the log.
        show: shows how much of the training is done, in percent.
    """

    def __init__(self, say: Callable[[str], None], show: Callable[[float], None]) -> None:
        self._say = say
        self._show = show
        self._said = -SECONDS_BETWEEN_UPDATES
        self.last_line = ""

    def __call__(self, line: str) -> None:
        if not line.strip():
            return
        self.last_line = line
        update = _UPDATE.match(line)
        if update is None:
            self._say(line)
            return
        done, total = (int(number.replace(",", "")) for number in update.groups())
        if done == total or time.monotonic() - self._said >= SECONDS_BETWEEN_UPDATES:
            self._said = time.monotonic()
            self._say(line)
        self._show(100 * done / total)
