"""The pipeline of a tiny model in a clone: run undisturbed once, copied as it was before each stage, compared afterwards."""

import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from flows.process.child import grace_seconds
from flows.process.paths import AVERAGED, DECODED, stages
from tests.clone import Clone, tiny_clone
from tests.waiting import processes, wait_for
from transformer_core.files import sha256_of

STAGES = tuple(name for name in stages() if name != "local_files")
SETTINGS: dict[str, dict[str, object]] = {
    "train": {
        "updates": 120, "save_every": 20, "validate_every": 40, "precision": "float32",
        "tokens_per_update": 2560, "tokens_per_microbatch": 640,  # Updates that are slow enough to be struck.
    },
    "machine": {"devices": 2, "threads": 1},
}  # fmt: skip
DVC = ("dvc", "repro")
FLOW = (sys.executable, "-m", "flows.pipeline")
LONGEST_SECONDS = 900.0
TOO_LONG = 124  # The exit code of a command that was still running after them, as that of `timeout`.
# The environment variable by which the processes of a round are found.
ROUND = "FAULT_ROUND"
# A folder that torch keeps in the temporary one for all processes of a user.
TORCH_CACHE = "torchinductor_"
# The outputs of stages. The files of .state are those of the tries; of them only temporary files count.
OUTPUTS = ("data", "models", "results")


@dataclass
class Ended:
    """The end of a command: its exit code (minus the signal that ended it), what it printed, and processes that it has left."""

    code: int
    output: str
    left: list[str] = field(default_factory=list)


@dataclass
class Result:
    """What a pipeline has made: sums of weights and hypotheses, points of its training in MLflow, and files."""

    sums: dict[str, str]
    points: Counter[tuple[str, int]]
    files: set[str]  # Relative to the round's folder: home/... and tmp/...


@dataclass
class Home:
    """A copy of the clone in which a round is played, with a temporary folder of its own beside it."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    log_name: str = "log"
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def root(self) -> Path:
        return self.folder / "home"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def log(self) -> Path:
        return self.folder / self.log_name

    def start(self, command: tuple[str, ...]) -> None:
        """Start a command as the leader of a process group; its output goes to the log."""
        environment = {**Clone(self.root).environment, "TMPDIR": str(self.temporary), ROUND: str(self.folder), **self.environment}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=self.root, env=environment, stdout=log, stderr=log, start_new_session=True)

    def run(self, command: tuple[str, ...], meanwhile: Callable[[], object] = int) -> Ended:
        """Run a command to its end and that of everything it has started, with what happens meanwhile."""
        self.start(command)
        assert self.process is not None
        try:
            meanwhile()
            try:
                code = self.process.wait(LONGEST_SECONDS)
            except subprocess.TimeoutExpired:
                code = TOO_LONG
            _, alive = psutil.wait_procs(self.processes(), timeout=grace_seconds())
            left = [" ".join(one.cmdline()) for one in alive]
        finally:
            for one in self.processes():
                with suppress(psutil.Error):
                    one.kill()
            self.process.wait()
        return Ended(code, self.log.read_text(encoding="utf-8", errors="replace"), left)

    def processes(self, words: str = "") -> list[psutil.Process]:
        """The processes of the round, or those of them with all these words in the command line."""
        return processes(lambda one: one.environ().get(ROUND) == str(self.folder) and set(words.split()) <= set(one.cmdline()))

    def wait_for(self, stage: str) -> None:
        """Wait until a stage runs, or the command has ended."""
        wait_for(lambda: self.processes(f"flows.stages {stage}") or self.has_ended(), f"stage {stage} did not start")

    def has_ended(self) -> bool:
        """Whether the command has ended."""
        assert self.process is not None
        return self.process.poll() is not None

    def result(self, database: Path | None = None) -> Result:
        files = [file for folder in OUTPUTS for file in (self.root / folder).rglob("*") if file.is_file()]
        files += (self.root / ".state").rglob(".*.new")
        temporary = [file for file in self.temporary.rglob("*") if not file.name.startswith(TORCH_CACHE)]
        weights = [self.root / AVERAGED / "model.safetensors", *sorted((self.root / DECODED).glob("*.hyp"))]
        return Result(
            {file.name: sha256_of(file) for file in weights},
            points(database or self.root / "mlflow.db"),
            {file.relative_to(self.folder).as_posix() for file in [*files, *temporary]},
        )


def points(database: Path) -> Counter[tuple[str, int]]:
    """How often each point is in a run of MLflow's database, at most, without what is sampled by the clock.

    A training that ran twice, because DVC could not keep its outputs, has two runs.
    """
    with closing(sqlite3.connect(database)) as connection:
        query = "SELECT key, step, COUNT(*) FROM metrics WHERE key NOT LIKE 'system/%' GROUP BY run_uuid, key, step"
        rows = connection.execute(query).fetchall()
    found: Counter[tuple[str, int]] = Counter()
    for key, step, count in rows:
        found[str(key), int(step)] = max(found[str(key), int(step)], int(count))
    return found


class Pipeline:
    """The undisturbed run: a copy of the clone before each stage of the rounds, how long each of these took, and what came out.

    Args:
        folder: an empty folder for the copies and the rounds.
        stages: those in which rounds are played.
    """

    def __init__(self, folder: Path, stages: Sequence[str] = STAGES) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = {}
        home = self._new("undisturbed")
        tiny_clone(home.root).set(SETTINGS)
        Clone(home.root).commit("settings of the rounds")
        done = ""
        for before, stage in pairwise(("local_files", *STAGES)):
            if stage in stages:
                if done != before:
                    self._run(home, before)
                shutil.copytree(home.root, folder / "before" / stage, symlinks=True)
                self.seconds[stage] = self._run(home, stage)
                done = stage
        self._run(home, STAGES[-1])
        self.undisturbed = home.result()

    def _run(self, home: Home, last: str) -> float:
        """Run the stages up to the last one; how many seconds that took."""
        began = time.monotonic()
        ended = home.run((*DVC, last))
        assert ended.code == 0, ended.output
        return time.monotonic() - began

    def _new(self, name: str) -> Home:
        home = Home(self.folder / name)
        home.temporary.mkdir(parents=True)
        return home

    @contextmanager
    def before(self, stage: str, number: int) -> Iterator[Home]:
        """A copy of the clone in which the stages before `stage` have run; removed at the end."""
        home = self._new(f"round-{number}")
        shutil.copytree(self.folder / "before" / stage, home.root, symlinks=True)
        yield home
        shutil.rmtree(home.folder)
