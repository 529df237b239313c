"""Slurm: a job by sbatch, which is queued again at its time limit and after the loss of a node.

    python -m flows.places.slurm ended STAGE CODE

is the last command of the job's script: it decides whether the job is queued again.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.places.jobs import Job, Seen, render
from flows.process.paths import STATE
from flows.process.runner import STARTERS, reports_errors
from transformer_core.cli.arguments import Parser
from transformer_core.config import load_params
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.places import Slurm

RENDEZVOUS_PORT = 29400
# Slurm may signal up to a minute early; Python, torchrun and srun need time to end.
ENDING_SECONDS = 30
# With the last three Slurm queues the job again by itself, a moment later; a job that it does not queue again it soon forgets.
_WAITING = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_HOLD",
        "SPECIAL_EXIT",
        "SUSPENDED",
        "RESV_DEL_HOLD",
        "NODE_FAIL",
        "BOOT_FAIL",
        "PREEMPTED",
    }
)
_RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
_UNKNOWN_JOB = "Invalid job id"
_AWAY = ("Unable to contact", "Socket timed out", "Connection refused", "Zero Bytes were transmitted", "communication failure")


class SlurmQueue:
    """The jobs of this user in Slurm."""

    def __init__(self, place: Slurm, job: Job) -> None:
        self._place, self._job = place, job

    def find(self) -> str | None:
        """Return the number of the job of this name that has not ended."""
        found = _slurm("squeue", "--noheader", "--me", f"--name={self._job.name}", "--format=%i")
        return next(iter(found.split()), None)

    def submit(self) -> str:
        """Submit the job: sbatch reads its script and answers with its number."""
        return _slurm("sbatch", "--parsable", script=self.script()).partition(";")[0].strip()

    def script(self) -> str:
        """Return the script of the job."""
        place, job = self._place, self._job
        options = {"nodes": place.nodes, **({"gpus-per-node": place.gpus} if place.gpus else {}), "time": place.time, **place.options}
        values: dict[str, Any] = {
            "name": job.name,
            "stage": job.stage,
            "options": options,
            "grace": job.machine.grace_seconds + ENDING_SECONDS,
            "log": str(job.log.resolve()),
            "folder": str(Path.cwd()),
            "reports": str(STATE / "exit" / f"{job.stage}-node-"),
            "prelude": _text(place.prelude) if place.prelude else "",
            "port": RENDEZVOUS_PORT,
            "python": sys.executable,
        }
        return render("slurm.sbatch", values)

    def look(self, number: str) -> Seen:
        """Return what the job does, with Slurm's reason if it waits."""
        try:
            state, _, reason = _slurm("squeue", "--noheader", f"--jobs={number}", "--format=%T|%r").strip().partition("|")
        except UserError as error:
            if _UNKNOWN_JOB in error.message:
                return Seen("ended")
            raise
        return Seen("waiting" if state in _WAITING else "running" if state in _RUNNING else "ended", reason)

    def stop(self, number: str, running: bool) -> None:
        """Send SIGTERM to the nodes of a running job, or remove a waiting one."""
        _slurm("scancel", *(["--signal=TERM"] if running else []), number)


def _slurm(*command: str, script: str | None = None) -> str:
    """Return the output of a command of Slurm. Raises `UserError`: 69 if Slurm is away, 78 if it refuses."""
    try:
        # A job outlives this process, perhaps on another machine.
        outliving = {**os.environ, STARTERS: ""}
        done = subprocess.run(command, input=script, env=outliving, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        message = f"machine.places: {command[0]} is not installed here"
        raise configuration_error(message, "Run this on a machine from which jobs are submitted.") from None
    if done.returncode:
        reason = done.stderr.strip().partition("\n")[0].removeprefix(f"{command[0]}: ").removeprefix("error: ")
        if any(words in done.stderr for words in _AWAY):
            raise UserError(f"Slurm is away: {reason}", "", ExitCode.UNAVAILABLE)
        raise configuration_error(f"{command[0]} refuses: {reason}", "Correct machine.places.")
    return done.stdout


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise configuration_error(f"machine.places: prelude: {path}: {error.strerror}") from None


def saved_update(stage: str) -> int:
    """Return the last update of the training that is saved; 0 for another stage, which has no state."""
    if stage != "train":
        return 0
    from flows.record.recorder import fingerprint_of
    from transformer_core.training.checkpoint import state_files, state_of, update_of

    return max(map(update_of, state_files(state_of(fingerprint_of(load_params())))), default=0)


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """End a job: queue it again after a fault that may pass, unless somebody has stopped it. Returns the exit code of its nodes."""
    parser = Parser(prog="python -m flows.places.slurm", description=main.__doc__)
    parser.add_argument("action", choices=["ended"])
    parser.add_argument("stage")
    parser.add_argument("code", type=int, help="exit code of srun")
    options = parser.parse_args(arguments)
    job = Job.of(options.stage, load_params())
    # Without a report the nodes were not started: srun itself failed, or a node was lost.
    code = (job.outcome() or (ExitCode.UNAVAILABLE if options.code else ExitCode.DONE, ""))[0]
    if job.tries_again(code, saved_update(options.stage), time.time()):
        print(f"queued again after {code}", flush=True)
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
    elif code:
        print(f"not queued again after {code}", flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
