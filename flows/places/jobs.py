"""A stage elsewhere: its own process submits it to the scheduler of its place, follows the job, and passes a stop on.

The job runs `python -m flows.stages NAME --here` in this same folder, on storage that its machines share: nothing is copied. Started again
after a kill, the process finds its job by name and follows it. Each node leaves a report of its exit, `.state/exit/NAME-node-RANK.json`;
`.state/jobs` has the job's log, the request to stop it, and when it was submitted.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib import resources
from itertools import takewhile
from math import inf
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, NamedTuple, TypeVar

from jinja2 import Environment, StrictUndefined

from flows.process.child import run_child
from flows.process.exits import TRANSIENT
from flows.process.paths import STATE, settings_up_to, stages
from flows.process.patience import retry
from flows.process.runner import STARTERS, StageError, echo, exit_file
from flows.process.signals import grace_seconds
from transformer_core.config import Machine, Params
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error, did_you_mean
from transformer_core.files import locked, read_json
from transformer_core.places import Place

JOBS = STATE / "jobs"
POLL_SECONDS = 2.0
RENDEZVOUS_PORT = 29400
# Schedulers may signal up to a minute early; Python, torchrun and srun need time to end.
ENDING_SECONDS = 30
# The schedulers by `on` of a place. One is imported when it is needed: Prefect takes seconds.
_SCHEDULERS = {
    "slurm": "flows.places.slurm:SlurmQueue",
    "kubernetes": "flows.places.kubernetes:KubernetesJobs",
    "prefect": "flows.places.work_pool:PrefectPool",
}
Answer = TypeVar("Answer")


class Job(NamedTuple):
    """A stage with its settings in this folder: what a job runs, and the name by which it is found again."""

    stage: str
    name: str
    machine: Machine

    @classmethod
    def of(cls, stage: str, params: Params) -> "Job":
        """Return the job of a stage. Its name has a hash of this folder, the stage, and the settings up to it."""
        key = sha256(json.dumps([str(Path.cwd()), stage, settings_up_to(stage, params)], sort_keys=True).encode()).hexdigest()
        return cls(stage, f"{stage.replace('_', '-')}-{key[:8]}", params.machine)

    def file(self, ending: str) -> Path:
        """Return a file: `log`, the output of all nodes; `stop`, there once somebody has stopped the job; `submitted`, as old as it is."""
        return JOBS / f"{self.name}.{ending}"

    def reports(self) -> list[Path]:
        """Return the reports of its nodes, node 0 first."""
        found = exit_file(self.stage).parent.glob(f"{self.stage}-node-*.json")
        return sorted(found, key=lambda file: int(file.stem.rpartition("-")[2]))

    def clear(self) -> None:
        """Remove what earlier jobs of this name and stage have left, and note the time of this one."""
        JOBS.mkdir(parents=True, exist_ok=True)
        for file in (self.file("log"), self.file("stop"), *self.reports()):
            file.unlink(missing_ok=True)
        self.file("submitted").touch()

    def outcome(self) -> dict[str, Any] | None:
        """Return the report of the node whose error no retry mends, else of the first that failed or is done; None without any."""
        reports = [read_json(file) for file in self.reports()]
        failed = [report for report in reports if report["code"]]  # A node that loses another ends with 69.
        done = reports if exit_file(f"{self.stage}-node-0").exists() else []  # Node 0 writes the outputs.
        return next((report for report in failed if report["code"] not in TRANSIENT), next(iter([*failed, *done]), None))

    def tries_again(self, code: int, states: Iterable[Path], now: float) -> bool:
        """Return whether to queue the job again: after a fault that may pass, for `machine.patience_hours` after its last progress.

        The times of `states`, those of its training, are those of its progress.
        """
        if code not in TRANSIENT or self.file("stop").exists() or not self.file("submitted").exists():  # Settings were changed meanwhile.
            return False
        last = max(file.stat().st_mtime for file in (self.file("submitted"), *states))
        return now - last < 3600 * self.machine.patience_hours


class Seen(NamedTuple):
    """What a scheduler says of a job: its phase, and the reason in the scheduler's words."""

    phase: Literal["waiting", "running", "ended"]
    words: str = ""


class Scheduler(ABC):
    """What submits and stops a job. Each method raises `UserError`: 69 if the scheduler does not answer, 78 if it refuses."""

    def __init__(self, place: Place, job: Job) -> None:
        self.place, self.job = place, job

    @abstractmethod
    def find(self) -> str | None:
        """Return the number of the job that has not ended, or None."""

    @abstractmethod
    def submit(self) -> str:
        """Submit the job and return its number."""

    @abstractmethod
    def look(self, number: str) -> Seen:
        """Return what the job does."""

    @abstractmethod
    def stop(self, number: str) -> None:
        """Send its nodes SIGTERM, or remove it from the queue."""

    def render(self, template: str, **values: Any) -> str:
        """Return the text of the job from a template of Jinja, for which place, job and these are values; a missing one is an error."""
        text = resources.files("flows.places").joinpath("templates", template).read_text(encoding="utf-8")
        environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        environment.filters |= {"shell": shlex.quote, "json": json.dumps}
        job = {"name": self.job.name, "stage": self.job.stage, "folder": str(Path.cwd()), "log": str(self.job.file("log").resolve())}
        grace = self.job.machine.grace_seconds + ENDING_SECONDS
        return environment.from_string(text).render(self.place.model_dump() | job | values, port=RENDEZVOUS_PORT, grace=grace)

    def answer(self, question: Callable[[], Answer], deadline: float = inf) -> Answer:
        """Return the answer of a scheduler, which is asked again while it is away, until a time of the monotonic clock: its jobs go on."""
        hours = min(self.job.machine.patience_hours, (deadline - time.monotonic()) / 3600)
        return retry(hours, question, partial(echo, stream=sys.stderr))


def ask(scheduler: str, away: Sequence[str], *command: str, text: str | None = None) -> str:
    """Return the output of a scheduler's command that reads a text. Raises `UserError`: 69 if its message has a word of `away`, else 78."""
    try:  # Without starters: a job outlives this process, perhaps on another machine.
        done = subprocess.run(command, input=text, env={**os.environ, STARTERS: ""}, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        message = f"machine.places: {command[0]} is not installed here"
        raise configuration_error(message, "Run this on a machine from which jobs are submitted.") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [""]
        reason = next((line for line in lines if "error" in line), lines[0]).removeprefix(f"{command[0]}: ").removeprefix("error: ")
        if any(words in done.stderr for words in away):
            raise UserError(f"{scheduler} is away: {reason}", "", ExitCode.UNAVAILABLE)
        raise configuration_error(f"{command[0]} refuses: {reason}", "Correct machine.places.")
    return done.stdout


def run_elsewhere(stage: str, place: Place, params: Params) -> str:
    """Run a stage in its place, and return its closing line.

    Raises `UserError`: the error of a node; 69 if the scheduler does not answer, or the job left no report; 78 for a place of no stage.
    `StageError`: a bug ended a node. `Interrupted`: stopped, here or in the scheduler; a training saves its state.
    """
    if unknown := [name for name in params.machine.places if name not in stages()]:
        message, known = f"params.yaml: machine.places.{unknown[0]}: no such stage", f"Stages: {', '.join(stages())}."
        raise configuration_error(message, did_you_mean(unknown[0], stages(), known))
    job = Job.of(stage, params)
    with locked(STATE / "locks" / f"{stage}-place", f"stage {stage}"):
        scheduler: Scheduler = resolve_name(_SCHEDULERS[place.on])(place, job)
        number = found = scheduler.answer(scheduler.find)
        if found is None:
            job.clear()
        job.file("stop").unlink(missing_ok=True)
        log = _Log(job.file("log"))
        try:
            number = found or scheduler.answer(scheduler.submit)
            echo(f"{stage}: job {number} of {place.on}{' goes on' if found else ''}, log {job.file('log')}", sys.stderr)
            _follow(scheduler, number, log)
        except Interrupted:
            job.file("stop").touch()
            deadline, ended = time.monotonic() + grace_seconds(), "was stopped"
            try:
                if number := number or scheduler.answer(scheduler.find, deadline):  # It may have been submitted just now.
                    scheduler.answer(partial(scheduler.stop, number), deadline)
                    ended = ended if _follow(scheduler, number, log, deadline) else "is still ending"
            except UserError as error:
                ended = f"may go on: {error.message}"
            outcome = job.outcome()
            raise Interrupted(outcome["message"] if outcome else f"{stage}: job {number or job.name} {ended}") from None
    return _closing_line(job, number)


def _closing_line(job: Job, number: str) -> str:
    report = job.outcome()
    if report is None:
        message = f"{job.stage}: job {number} ended without a report"
        raise UserError(message, f"Its log is {job.file('log')}. Run it again to resume.", ExitCode.UNAVAILABLE)
    code, message = report["code"], report["message"]
    if code == ExitCode.INTERRUPTED:
        raise Interrupted(message)
    if code in set(ExitCode) - {ExitCode.DONE}:
        raise UserError(message, report["remedy"], ExitCode(code))
    if code:
        raise StageError(code, f"{message} (log {job.file('log')})")
    return f"{job.stage}: job {number} is done"


def _follow(scheduler: Scheduler, number: str, log: "_Log", deadline: float = inf) -> bool:
    """Pass the log on until the job has ended or the deadline has passed; return whether it has ended. Says why it waits."""
    told = ""
    while True:
        seen = scheduler.answer(partial(scheduler.look, number), deadline)
        log.pass_on()
        if seen.phase == "ended" or time.monotonic() >= deadline:
            return seen.phase == "ended"
        if seen.phase == "waiting" and seen.words != told:
            echo(f"job {number} waits: {seen.words}", sys.stderr)
        told = seen.words
        time.sleep(POLL_SECONDS)


def run_as_node(stage: str, folder: Path, log: Path, write: Callable[[str], None], prefix: str = "") -> int:
    """Run a stage as one node of a job, whose output goes to `write` and to the job's log; return its exit code."""
    with (folder / log).open("a", encoding="utf-8") as file:

        def on_line(line: str) -> None:
            echo(f"{prefix}{line}", file)  # Goes on without it on a full disk.
            write(line)

        return run_child([sys.executable, "-m", "flows.stages", stage, "--here"], on_line, directory=folder)


class _Log:
    """The log of a job, from its end at the start of this process on. Slurm writes the node before each line of a training on several."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, path.stat().st_size if path.exists() else 0

    def pass_on(self) -> None:
        """Pass complete lines on that were added."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._read)
            for line in takewhile(lambda line: line.endswith(b"\n"), file):
                self._read += len(line)
                echo(re.sub("^0+: ", "", line[:-1].decode(errors="replace")), sys.stderr)
