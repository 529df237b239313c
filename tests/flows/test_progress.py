"""The updates of a training on standard error: lines, or a bar on a terminal."""

import os
import pty
import termios
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress

import pytest

from flows.process.progress import Progress


@contextmanager
def terminal() -> Iterator[bytearray]:
    """A terminal as standard error; after the block the bytes are what a person has read from it."""
    shown = bytearray()
    read_end, write_end = pty.openpty()
    termios.tcsetwinsize(write_end, (40, 120))
    with os.fdopen(write_end, "w") as stream, redirect_stderr(stream):
        yield shown
    with suppress(OSError):  # Nobody holds the other end any more.
        while True:
            shown += os.read(read_end, 65536)
    os.close(read_end)


def test_a_line_a_minute_and_the_last_tell_what_was_done(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Progress()
    lines.show(1, 2_000, "")
    lines.show(2, 2_000, "100 tok/s")  # Too soon after the first.
    lines.show(2_000, 2_000, "100 tok/s, 0:00 left")
    assert capsys.readouterr().err == "update 1 of 2,000\nupdate 2,000 of 2,000: 100 tok/s, 0:00 left\n"


def test_a_terminal_has_a_bar_that_begins_with_the_first_update_shown() -> None:
    with terminal() as shown:
        bar = Progress()
        bar.write("going on after update 1,000")
        bar.show(1_001, 2_000, "")
        bar.show(2_000, 2_000, "100 tok/s")
        bar.close()
    before, _, drawn = shown.decode().partition("going on after update 1,000\r\n")
    assert before == ""
    assert " 50%" in drawn.partition("\r")[2].splitlines()[0]
    assert drawn.rpartition("2000 of 2000 updates, 00:")[2].rstrip()[2:] == ", 100 tok/s"


def test_a_terminal_that_is_closed_ends_no_training() -> None:
    read_end, write_end = pty.openpty()
    drawn = False
    with suppress(OSError), os.fdopen(write_end, "w", buffering=1) as stream, redirect_stderr(stream):
        bar = Progress()
        bar.show(1, 10, "")
        os.close(read_end)
        for update in range(2, 10):
            bar.show(update, 10, "100 tok/s")
            bar.write("update 5: valid PPL 3.2")
        bar.close()
        drawn = True
    assert drawn
