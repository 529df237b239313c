"""When a failure is tried again: with a clock of the test's own."""

from collections.abc import Iterable
from contextlib import suppress
from types import SimpleNamespace

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.pipeline import wait_for_prefect
from flows.process import patience
from flows.process.patience import retry
from tests.serving import Quiet, serving
from transformer_core.errors import UserError

HOUR = 3600.0


def pauses(hours: float, progress: Iterable[int], seconds: float = 0.0, code: int = 69, chance: float = 0.0) -> list[float]:
    """The pauses after tries of `seconds` that all fail, each with its progress, until there is no other or the list ends."""
    now, made, reached = 0.0, list[float](), iter(progress)
    done = 0

    def attempt() -> None:
        nonlocal now, done
        if (one := next(reached, None)) is None:
            return
        now, done = now + seconds, one
        raise UserError("away", "", code)

    def sleep(pause: float) -> None:
        nonlocal now
        made.append(pause)
        now += pause

    with pytest.MonkeyPatch.context() as patch, suppress(UserError):
        patch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
        patch.setattr(patience, "random", SimpleNamespace(random=lambda: chance))
        retry(hours, attempt, lambda _line: None, lambda: done)
    return made


def test_only_what_may_pass_is_tried_again() -> None:
    codes = (0, 1, 65, 69, 75, 78, 130, 135, 137, 143, 255)
    assert [code for code in codes if pauses(1.0, [0], code=code)] == [69, 75, 135, 137, 143]


def test_pauses_grow_from_ten_seconds_to_ten_minutes_and_the_last_try_is_at_the_end() -> None:
    made = pauses(1.0, [0] * 100)
    assert made == [10, 20, 40, 80, 160, 320, 600, 600, 600, 600, 570]
    assert sum(made) == HOUR


def test_up_to_half_of_a_pause_is_left_out_so_that_all_do_not_come_back_together() -> None:
    assert [pauses(1.0, [0], chance=chance) for chance in (0.0, 0.5, 1.0)] == [[10.0], [7.5], [5.0]]


def test_the_time_of_long_tries_counts_and_progress_begins_it_anew() -> None:
    assert len(pauses(12.0, [0] * 100, seconds=5 * HOUR)) == 3
    assert pauses(12.0, range(0, 100_000, 1000), seconds=11 * HOUR) == [10.0] * 100


def test_a_run_whose_stages_are_done_waits_for_prefect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    class Restarting(Quiet):
        """A server that is well when it is asked for the third time."""

        def do_GET(self) -> None:
            asked.append(self.path)
            self.reply(200 if len(asked) > 2 else 500, b"true")

    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)
    with serving(Restarting) as address, temporary_settings({PREFECT_API_URL: f"http://{address}/api", PREFECT_CLIENT_MAX_RETRIES: 0}):
        wait_for_prefect(1.0)
    assert len(asked) >= 3
    assert "The stages are done. Trying again in 0 seconds" in capsys.readouterr().err
    with temporary_settings({PREFECT_API_URL: None}):
        wait_for_prefect(1.0)  # A temporary server is not waited for.
