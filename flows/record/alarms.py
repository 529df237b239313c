"""Alarms: what somebody should look at, sent to `machine.alarm_url` once for each cause and run; and the end of a training that hangs."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import requests

from flows.process.runner import echo, in_background, report_exit
from flows.record.run import EXIT_CODE, RunRecord, records
from transformer_core.config import Machine
from transformer_core.errors import ExitCode, for_terminal

# File in a record's folder with the address of its run in MLflow.
LINK = "link"
STALLED = "stalled"
CHECK_SECONDS = 5.0
_ANSWER_SECONDS = 10
_SKIPPED_IN_ROW = 3
# Records of 20 updates: the latest are slow if their median is under half of that of all, once there are enough.
_LATEST, _ENOUGH = 5, 25


def alarm(machine: Machine, run: str, cause: str, fault: str, remedy: str, link: str = "") -> None:
    """Send an alarm, unless this run has sent one of this cause. One that cannot be sent is a line on standard error.

    `run` is the id of what it is about: a record, a version, a run of the flow. `remedy` says what to do; `link` is the run's page.
    """
    sent = records().parent / "alarms" / f"{run}-{cause}"
    if machine.alarm_url is None or sent.exists():
        return
    text = for_terminal(" ".join(filter(None, [f"{fault.rstrip('.')}.", remedy, link])))
    try:
        requests.post(os.path.expandvars(machine.alarm_url), json={"text": text}, timeout=_ANSWER_SECONDS).raise_for_status()
        sent.parent.mkdir(parents=True, exist_ok=True)
        sent.touch()
    except (OSError, ValueError) as error:  # Its message may have the address, which is a secret.
        echo(f"machine.alarm_url: {type(error).__name__}, not sent: {text}", sys.stderr)


def link_of(identity: str) -> str:
    """Return the address of a record's run in MLflow; empty if it was not sent yet, or is not here."""
    with suppress(OSError):
        return (records() / identity / LINK).read_text(encoding="utf-8")
    return ""


@dataclass
class Vitals:
    """How a training goes: the recorder writes it, a thread of `watching` reads it."""

    moved: float = field(default_factory=time.monotonic)  # Monotonic time of the last update or validation.
    speeds: list[float] = field(default_factory=list)  # Target tokens a second of each record.
    skipped: list[int] = field(default_factory=list)  # The last updates in a row that were not finite, without those that fp16 expects.

    def skip(self, update: int) -> None:
        """Note an update that was skipped."""
        self.skipped = [*(self.skipped if self.skipped[-1:] == [update - 1] else []), update]

    def troubles(self, machine: Machine, state: Path) -> Iterator[tuple[str, str, str]]:
        """Yield cause, fault and remedy of each alarm that is due now; `state` is a folder of the disk that the training fills."""
        minutes = (time.monotonic() - self.moved) / 60
        if minutes > machine.stalled_minutes:
            fault = f"train: no update for {machine.stalled_minutes:g} minutes, so it is ended; its saved state is kept"
            yield STALLED, fault, "The flow or the scheduler tries it again; otherwise run it again to resume."
        if len(self.speeds) >= _ENOUGH and median(self.speeds[-_LATEST:]) < median(self.speeds) / 2:
            fault = f"train: {median(self.speeds[-_LATEST:]):,.0f} target tok/s, half of its usual {median(self.speeds):,.0f}"
            yield "slow", fault, "Look for other processes on its machine, and at its system metrics in MLflow."
        if len(self.skipped) >= _SKIPPED_IN_ROW:
            fault = f"train: {len(self.skipped)} updates in a row were skipped because they were not finite, up to {self.skipped[-1]:,}"
            yield "skipped", fault, "If it goes on, lower train.learning_rate_factor or lengthen train.warmup; the log names their file."
        with suppress(OSError):  # Of a shared disk that is away for a time.
            free = shutil.disk_usage(state).free / 1e9
            if free < machine.alarm_disk_gb:
                yield "disk", f"train: {free:.1f} GB are free on the disk of {state.absolute()}", "Free space: python -m flows.retention"


def watching(vitals: Vitals, machine: Machine, record: RunRecord, state: Path, report: Path) -> AbstractContextManager[None]:
    """Send the alarms of a training during the block, and end this process with 75 when no update comes: a hung one cannot stop itself.

    `report` is the file for the report of that exit.
    """
    told: set[str] = set()

    def watch(stop: threading.Event) -> None:
        while not stop.wait(CHECK_SECONDS):
            for cause, fault, remedy in vitals.troubles(machine, state):
                if cause not in told:
                    told.add(cause)
                    alarm(machine, record.id, cause, fault, remedy, link_of(record.id))
                if cause == STALLED:
                    echo(f"{fault}. Run it again to resume.", sys.stderr)
                    report_exit(report, ExitCode.INTERRUPTED, fault, "Run it again to resume.")
                    record.tags[EXIT_CODE] = str(ExitCode.INTERRUPTED)
                    with suppress(OSError):
                        record.end("KILLED")
                    os._exit(ExitCode.INTERRUPTED)

    return in_background(watch, "alarms", _ANSWER_SECONDS)
