"""A round: a fault in a run of the pipeline, the same command again, and what came out compared with the undisturbed run."""

import re
import sys
import time
from collections.abc import Sequence
from contextlib import chdir, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from flows.dvc.commands import repair
from tests.faults.faults import FAULTS, Scene
from tests.faults.pipeline import FLOW, STAGES, Ended, Pipeline, Result
from tests.flows.prefect_server import PrefectServer

SYNC = (sys.executable, "-m", "flows.tracking", "sync")

# Before a line of a stage in the output of the flow, and before one of a rank.
LOG_PREFIX = re.compile(r"^(?:[\d:.]+ \| \w+ +\| Task run '\w+' - )?(?:\[rank\d+\]: ?)?", re.MULTILINE)
# Prefect's log has a traceback when its server has become unreachable; the last line is ours.
LOGGED_BY_PREFECT = ("httpcore.", "httpx.")


@dataclass
class Row:
    """A round in the table: what was done, how it ended, and what was wrong (nothing, if all is well)."""

    round: int
    fault: str
    stage: str
    command: str
    code: int
    message: str
    outcome: str
    problems: str
    seconds: int


class Rounds:
    """Plays rounds in a pipeline made once.

    Args:
        folder: an empty folder.
        logs: the folder for the output of rounds with problems.
        stages: those in which rounds are played.
    """

    def __init__(self, folder: Path, logs: Path, stages: Sequence[str] = STAGES) -> None:
        self.logs = logs
        self.pipeline = Pipeline(folder / "pipeline", stages)
        (folder / "prefect").mkdir()
        self.prefect = PrefectServer(folder / "prefect")
        self.prefect.start()

    def close(self) -> None:
        self.prefect.close()

    def play(self, name: str, seed: int, number: int) -> Row:
        """A fault at the moment that the seed and the round's number give; the outputs of a round with problems are kept in `logs`."""
        random, fault, began = Random(f"{seed} {number}"), FAULTS[name], time.monotonic()
        stage, command = random.choice(fault.stages), random.choice(fault.commands)
        with self.pipeline.before(stage, number) as home:
            home.environment |= self.prefect.environment
            scene = Scene(self.pipeline, home, stage, random, command, self.prefect)
            with closing(scene.stack):
                first = fault.run(scene)
                tries = [first]
                if first.code:
                    tries.append(home.run(command))
                if tries[-1].code:
                    scene.mend()
                    with chdir(home.root):
                        repair()  # As a person does after a plain `dvc repro`.
                    tries.append(home.run(command))
                if not tries[-1].code and scene.database:
                    home.run(SYNC)
                problems = [
                    *([] if scene.struck else ["nothing was struck"]),
                    *wrong_with(tries),
                    *([] if tries[-1].code else differences(self.pipeline.undisturbed, home.result(scene.database))),
                ]
        if problems:
            (self.logs / f"round-{number}.log").write_text("\n".join(f"--- {one.code}\n{one.output}" for one in tries), encoding="utf-8")
        outcome = ("unharmed", "recovered", "told what to mend")[len(tries) - 1]
        told = last_line(tries[-2] if len(tries) == 3 else first)
        seconds = round(time.monotonic() - began)
        return Row(number, name, stage, "flow" if command == FLOW else "dvc repro", first.code, told, outcome, "; ".join(problems), seconds)


def wrong_with(tries: list[Ended]) -> list[str]:
    """What a user should not meet, whatever the fault: a traceback, processes left, a command that does not end well in the end."""
    found = [f"try {number}: left {one.left}" for number, one in enumerate(tries, 1) if one.left]
    tracebacks = [(number, traceback_in(one.output)) for number, one in enumerate(tries, 1)]
    found += [f"try {number}: traceback: {said}" for number, said in tracebacks if said and not said.startswith(LOGGED_BY_PREFECT)]
    return found + ([f"not recovered: exit code {tries[-1].code}: {last_line(tries[-1])}"] if tries[-1].code else [])


def traceback_in(output: str) -> str:
    """The exception of the first traceback in an output; empty if there is none."""
    _, _, rest = LOG_PREFIX.sub("", output).partition("Traceback (most recent call last)")
    return next((line.strip() for line in rest.splitlines()[1:] if line.strip() and not line.startswith(" ")), "unknown" if rest else "")


def differences(expected: Result, found: Result) -> list[str]:
    """Between an undisturbed run and one with a fault: weights and hypotheses to the bit, points in MLflow, files."""
    changed = [name for name, value in expected.sums.items() if found.sums.get(name) != value]
    points = {key: found.points[key] for key in expected.points if found.points[key] != expected.points[key]}
    extra, missing = sorted(found.files - expected.files), sorted(expected.files - found.files)
    parts = {"different": changed, "points": points, "more files": extra, "files missing": missing}
    return [f"{what}: {value}" for what, value in parts.items() if value]


def last_line(ended: Ended) -> str:
    """The last line of a command that failed, in which it says why; empty if it ended with 0."""
    lines = [line for line in ended.output.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if ended.code and lines else ""
