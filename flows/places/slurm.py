"""Slurm: a job by sbatch, which is queued again at its time limit and after the loss of a node.

    python -m flows.places.slurm STAGE CODE

is the last command of the job's script: it decides whether the job is queued again.
"""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from flows.places.jobs import Job, Scheduler, Seen, ask
from flows.process.paths import STATE
from flows.process.runner import reports_errors
from transformer_core.config import load_params
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.places import Slurm

_ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "REVOKED")
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED")
_UNKNOWN_JOB = "Invalid job id"
_AWAY = ("Unable to contact", "Socket timed out", "Connection refused", "Zero Bytes were transmitted", "communication failure")
_slurm = partial(ask, "Slurm", _AWAY)


class SlurmQueue(Scheduler):
    """The jobs of this user in Slurm."""

    place: Slurm

    def find(self) -> str | None:
        return next(iter(_slurm("squeue", "--noheader", "--me", f"--name={self.job.name}", "--format=%i").split()), None)

    def submit(self) -> str:
        """Submit the job: sbatch reads its script and answers with its number."""
        return _slurm("sbatch", "--parsable", text=self.script()).partition(";")[0].strip()

    def script(self) -> str:
        """Return the script of the job."""
        place = self.place
        try:
            prelude = Path(place.prelude).read_text(encoding="utf-8").strip() if place.prelude else ""
        except OSError as error:
            raise configuration_error(f"machine.places: prelude: {place.prelude}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise configuration_error(f"machine.places: prelude: {place.prelude}: not valid UTF-8 (byte {error.start})") from None
        reports = str(STATE / f"exit/{self.job.stage}-node-")
        return self.render("slurm.sbatch", options=place.sbatch_options, reports=reports, prelude=prelude, python=sys.executable)

    def look(self, number: str) -> Seen:
        """Return what the job does, with Slurm's reason if it waits."""
        try:
            state, _, reason = _slurm("squeue", "--noheader", f"--jobs={number}", "--format=%T|%r").strip().partition("|")
        except UserError as error:
            if _UNKNOWN_JOB in error.message:
                return Seen("ended")
            raise
        # Also of a lost node (NODE_FAIL, BOOT_FAIL, PREEMPTED): Slurm queues the job again by itself, or soon forgets it.
        return Seen("ended" if not state or state in _ENDED else "running" if state in _RUNNING else "waiting", reason)

    def stop(self, number: str) -> None:
        _slurm("scancel", *(["--signal=TERM"] if self.look(number).phase == "running" else []), number)


@reports_errors
def main(stage: str, code: str) -> int:
    """End a job, whose srun had this exit code: queue it again after a fault that may pass. Returns the exit code of its nodes."""
    params, states = load_params(), list[Path]()
    if stage == "train":  # Another stage saves no states.
        from flows.record.recorder import fingerprint_of
        from transformer_core.training.checkpoint import state_files, state_of

        states = state_files(state_of(fingerprint_of(params)))
    job = Job.of(stage, params)
    # Without a report the nodes were not started: srun itself failed, or a node was lost.
    report = job.outcome()
    ended = int(report["code"] if report else ExitCode.UNAVAILABLE if int(code) else ExitCode.DONE)
    if job.tries_again(ended, states, time.time()):
        print(f"queued again after {ended}", flush=True)
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
    elif ended:
        print(f"not queued again after {ended}", flush=True)
    return ended


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
