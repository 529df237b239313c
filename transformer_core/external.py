"""Scores of translations by a command of the user's, such as COMET in an environment of its own.

The command is started once, without a shell. A line of its standard input is a JSON object with the texts `source`, `translation` and,
where there is one, `reference`. An empty line ends a batch: the command then writes a number for each of its lines, one a line, and
flushes. It ends when its standard input does.
"""

import json
import math
import os
import select
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryFile
from typing import IO

from transformer_core.errors import UserError, configuration_error, first_line
from transformer_core.processes import end_with_parent

_LOOK_SECONDS = 0.5
_WRITE_BYTES = 4096  # At most PIPE_BUF: a pipe that is ready takes as much without blocking.


@dataclass
class Scorer(AbstractContextManager["Scorer"]):
    """A command that scores segments; it is started with the first batch, and ends with this process or at the end of the block.

    `command` is quoted as for a shell; `setting` is where it was named, for errors; `stop_asked` tells whether this process was asked to
    stop.
    """

    command: str
    setting: str
    stop_asked: Callable[[], bool] = bool
    _process: "Popen[bytes] | None" = None
    _told: IO[bytes] = field(default_factory=TemporaryFile)  # Its standard error.

    def __exit__(self, *_: object) -> None:
        self._told.close()
        if self._process is not None:
            with suppress(ProcessLookupError):  # Also what it has started, which has its pipes.
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def scores(self, *texts: Sequence[str]) -> list[float]:
        """Return the score of each segment, given sources, translations and, for a metric that needs them, references.

        It is empty if `stop_asked`. Raises `UserError`: 78, there is no such command; 65, it ends early, or writes no finite number.
        """
        segments = [dict(zip(("source", "translation", "reference"), segment, strict=False)) for segment in zip(*texts, strict=True)]
        answers = self._answers("".join(f"{json.dumps(segment)}\n" for segment in segments).encode() + b"\n", len(segments))
        try:
            scores = list(map(float, answers))
        except ValueError:
            scores = [math.nan]
        if not all(map(math.isfinite, scores)) or len(scores) > len(segments):
            raise UserError(f"{self.setting}: the command must write a number a line, one for each of {len(segments):,} segments")
        return scores

    def _answers(self, batch: bytes, wanted: int) -> list[bytes]:
        """Write a batch, and meanwhile read the lines that answer it; the command may begin before it has all of it."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        into, out, left, read = process.stdin.fileno(), process.stdout.fileno(), memoryview(batch), b""
        while left or read.count(b"\n") < wanted:
            if self.stop_asked():
                return []
            readable, writable, _ = select.select([out], [into] if left else [], [], _LOOK_SECONDS)
            if writable:
                with suppress(BrokenPipeError):  # It has ended, which reading finds out.
                    left = left[os.write(into, left[:_WRITE_BYTES]) :]
            if readable:
                part = os.read(out, 1 << 16)
                read += part
                if not part:
                    try:  # One that has closed its output may still compute.
                        code = process.wait(_LOOK_SECONDS)
                    except TimeoutExpired:
                        continue
                    self._told.seek(0)
                    last = self._told.read().decode(errors="replace").strip().split("\n")[-1]
                    raise UserError(f"{self.setting}: the command ended with {code} before it had scored all: {last or 'no message'}")
        return read.split(b"\n")[:-1]

    def _started(self) -> "Popen[bytes]":
        try:
            # A process group of its own: Ctrl-C and a stop are for this process, which decides when the command ends.
            words = shlex.split(self.command)
            return Popen(words, stdin=PIPE, stdout=PIPE, stderr=self._told, preexec_fn=end_with_parent, process_group=0)
        except (OSError, ValueError, IndexError) as error:
            remedy = "docs/evaluation.md says how to install COMET beside this package."
            raise configuration_error(f"{self.setting}: cannot run {self.command!r} ({first_line(error)})", remedy) from None
