"""The faults: what each does to a run of the pipeline at a random moment of one of its stages."""

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import psutil

from tests.faults.pipeline import DVC, FLOW, OUTPUTS, STAGES, Ended, Home, Pipeline
from tests.faults.proxy import Trouble, troubled
from tests.flows.prefect_server import PrefectServer
from tests.flows.servers import mlflow_server
from tests.waiting import free_port, wait_for

Action = Callable[[], object]


@dataclass
class Scene:
    """A round: where it is played, at which stage, by which command, and the servers that the command uses."""

    pipeline: Pipeline
    home: Home
    stage: str
    random: Random
    command: tuple[str, ...]
    prefect: PrefectServer
    # Where the training's points are, if not in the home's own mlflow.db.
    database: Path | None = None
    # Put right what a message says must be put right by hand.
    mend: Callable[[], None] = lambda: None
    # Whether the fault has met the command: one that came after its end says nothing.
    struck: bool = False
    stack: ExitStack = field(default_factory=ExitStack)

    def strike(self, action: Action, command: tuple[str, ...] = (), share: float = 0.8) -> Ended:
        """Run the command, and do something at a random moment of the first `share` of the stage, which a second time may be faster."""

        def meanwhile() -> None:
            self.home.wait_for(self.stage)
            time.sleep(self.random.uniform(0, share * self.pipeline.seconds[self.stage]))
            self.struck = not self.home.has_ended()
            action()

        return self.home.run(command or self.command, meanwhile)

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the command, or to its whole process group, if it has not ended."""
        assert self.home.process is not None
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.home.process.pid, number)

    def kill(self, *lines: str, share: float = 0.8) -> Ended:
        """``kill -9`` of one of the processes whose command line has the words of one of these lines."""

        def there() -> list[psutil.Process]:
            return [one for line in lines for one in self.home.processes(line)]

        def action() -> None:
            wait_for(lambda: there() or self.home.has_ended())  # Ranks begin seconds after their stage.
            found = there()
            self.struck = bool(found)
            with suppress(psutil.NoSuchProcess, IndexError):
                self.random.choice(found).kill()

        return self.strike(action, share=share)

    def kill_twice(self, *lines: str) -> Ended:
        """``kill``, and again when the command goes on after it."""
        first = self.kill(*lines, share=0.4)
        struck = self.struck
        second = self.kill(*lines, share=0.4)
        self.struck &= struck
        return Ended(second.code, first.output + second.output, first.left + second.left)


def second(scene: Scene) -> Ended:
    """A second ``dvc repro`` beside the first."""
    other = Home(scene.home.folder, scene.home.environment, "second.log")
    ended = scene.strike(lambda: other.start(DVC))
    return Ended(ended.code, ended.output + other.log.read_text(encoding="utf-8"), ended.left)


def kill_prefect_server(scene: Scene) -> Ended:
    ended = scene.strike(scene.prefect.close)
    scene.prefect.start()
    return ended


def kill_mlflow_server(scene: Scene) -> Ended:
    server, port = ExitStack(), free_port()
    server.enter_context(mlflow_server(port, scene.home.folder))
    scene.database = scene.home.folder / "server.db"
    scene.home.environment["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{port}"
    ended = scene.strike(lambda: server.close())
    scene.stack.enter_context(mlflow_server(port, scene.home.folder))
    return ended


def mlflow_in_trouble(how: str, scene: Scene) -> Ended:
    """A server of MLflow that from a moment on is slow, answers 500 or something that is no JSON."""
    port = free_port()
    scene.stack.enter_context(mlflow_server(port, scene.home.folder))
    scene.database = scene.home.folder / "server.db"
    trouble: Trouble = scene.stack.enter_context(troubled(port))
    scene.home.environment["MLFLOW_TRACKING_URI"] = trouble.address
    ended = scene.strike(lambda: setattr(trouble, "how", how))
    trouble.how = ""
    return ended


MOUNTING = ("unshare", "--map-root-user", "--mount")  # For one command alone; some systems (Ubuntu 24.04) allow it to root only.
_MOUNT = 'set -e; {mount}; cd .; code=0; "$@" || code=$?; {after}; exit $code'
_FULL = "cp -a {folder}/. {saved}; mount -t tmpfs -o size={size} tmpfs {folder}; cp -a {saved}/. {folder}"
_KEEP = "rm -rf {saved}; cp -a {folder}/. {saved}"
_READ_ONLY = "mount --bind {folder} {folder}; mount -o remount,bind,ro {folder}"
_PAGE = 4096


def _unshared(mount: str, after: str, command: tuple[str, ...]) -> tuple[str, ...]:
    return (*MOUNTING, "sh", "-c", _MOUNT.format(mount=mount, after=after), "sh", *command)


def _pages(folder: Path) -> int:
    """Bytes that a folder takes on a tmpfs."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return sum(-(-file.stat().st_size // _PAGE) for file in files) * _PAGE


def disk_full(name: str, scene: Scene) -> Ended:
    """A disk with less room than what the rest of the pipeline writes into a folder."""
    folder, saved = _folder(scene, name), scene.home.folder / "saved"
    saved.mkdir()
    there = _pages(folder)
    grown = _pages(scene.pipeline.folder / "undisturbed" / folder.relative_to(scene.home.folder)) - there
    size = max(there + scene.random.randrange(0, max(grown, 16 * _PAGE), _PAGE), _PAGE)  # A size of 0 is no limit.
    places = {"folder": shlex.quote(str(folder)), "saved": shlex.quote(str(saved)), "size": size}
    ended = scene.home.run(_unshared(_FULL.format(**places), _KEEP.format(**places), scene.command))
    shutil.rmtree(folder)
    saved.rename(folder)
    # A stage can do without what is written elsewhere; and what is written there may be gone at the end.
    scene.struck = ended.code != 0 or name not in OUTPUTS or grown <= 0
    return ended


def read_only(name: str, scene: Scene) -> Ended:
    folder = shlex.quote(str(_folder(scene, name)))
    scene.struck = True
    return scene.home.run(_unshared(_READ_ONLY.format(folder=folder), "true", scene.command))


def _folder(scene: Scene, name: str) -> Path:
    folder = scene.home.temporary if name == "tmp" else scene.home.root / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def damaged(patterns: Sequence[str], scene: Scene, stopped: bool = False) -> Ended:
    """A file that was cut short or has another bit, with the pipeline before the stage, or stopped in it."""

    def there() -> list[Path]:
        return sorted(file for pattern in patterns for file in scene.home.root.glob(pattern) if file.is_file() and file.stat().st_size)

    def stop() -> None:
        wait_for(lambda: there() or scene.home.has_ended())
        scene.signal(signal.SIGTERM)

    if stopped:
        scene.strike(stop)
    files = there()
    assert files, f"no file is {' or '.join(patterns)}"
    file = scene.random.choice(files)
    content = file.read_bytes()
    scene.mend = lambda: restore(file, content)
    damage(file, scene.random)
    scene.struck = True
    return scene.home.run(scene.command)


def restore(file: Path, content: bytes) -> None:
    file.unlink(missing_ok=True)
    file.write_bytes(content)


def damage(file: Path, random: Random) -> None:
    """Cut a file at a random byte, or flip a random bit."""
    content = bytearray(file.read_bytes())
    place = random.randrange(len(content))
    if random.random() < 0.5:
        del content[place:]
    else:
        content[place] ^= 1 << random.randrange(8)
    file.unlink()  # Not through a link into DVC's cache, nor against its read-only mode.
    file.write_bytes(content)


def clock(days: int, scene: Scene) -> Ended:
    """The clock is set while a stage runs."""
    import libfaketime  # type: ignore[import-untyped]

    file = scene.home.folder / "clock"
    file.write_text("+0")
    libraries = {name: value for name, value in libfaketime.get_reload_information()[1].items() if name.startswith("LD_")}
    settings = {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    before = dict(scene.home.environment)
    scene.home.environment |= libraries | settings
    ended = scene.strike(lambda: file.write_text(f"{days:+}d"))
    scene.home.environment = before
    return ended


@dataclass(frozen=True)
class Fault:
    """A fault, the stages in which it is tried, and whether the command may be the flow instead of ``dvc repro``."""

    run: Callable[[Scene], Ended]
    stages: tuple[str, ...] = STAGES
    commands: tuple[tuple[str, ...], ...] = (DVC, FLOW)


FOLDERS = ("data", "models", "results", ".state", ".dvc/cache", "tmp")
WITH_MLFLOW = ("train", "evaluate", "publish")
FAULTS: Mapping[str, Fault] = {
    "kill -9 of the stage": Fault(lambda scene: scene.kill(f"flows.stages {scene.stage}")),
    # Or of torchrun above the ranks.
    "kill -9 of a rank": Fault(lambda scene: scene.kill("flows.places.ranks", "-u"), ("train",)),
    "kill -9 of a rank, twice": Fault(lambda scene: scene.kill_twice("flows.places.ranks", "-u"), ("train",), (DVC,)),
    "kill -9 of dvc": Fault(lambda scene: scene.kill("repro")),
    "kill -9 of the flow": Fault(lambda scene: scene.strike(lambda: scene.signal(signal.SIGKILL)), commands=(FLOW,)),
    "kill -9 of Prefect's server": Fault(kill_prefect_server, commands=(FLOW,)),
    "kill -9 of MLflow's server": Fault(kill_mlflow_server, WITH_MLFLOW),
    # As a scheduler does.
    "SIGTERM": Fault(lambda scene: scene.strike(lambda: scene.signal(signal.SIGTERM))),
    # To everything in the foreground.
    "Ctrl-C": Fault(lambda scene: scene.strike(lambda: scene.signal(signal.SIGINT, group=True))),
    "a second dvc repro": Fault(second, commands=(DVC,)),
    **{f"disk full: {name}": Fault(partial(disk_full, name)) for name in FOLDERS},
    **{f"read-only: {name}": Fault(partial(read_only, name)) for name in FOLDERS},
    "damaged corpus": Fault(partial(damaged, ["data/raw/*", "data/clean/*"]), STAGES[2:]),
    "damaged vocabulary": Fault(partial(damaged, ["data/bpe/*"]), STAGES[3:]),
    "damaged shard": Fault(partial(damaged, ["data/binarized/**/*"]), STAGES[4:]),
    "damaged state": Fault(partial(damaged, [".state/*/state-*.pt", ".state/*/checkpoints/*"], stopped=True), ("train",)),
    "damaged checkpoint": Fault(partial(damaged, ["models/checkpoints/*"]), STAGES[5:]),
    "damaged model": Fault(partial(damaged, ["models/averaged/*"]), STAGES[6:]),
    "damaged hypotheses": Fault(partial(damaged, ["results/decode/*"]), STAGES[7:]),
    "damaged record": Fault(partial(damaged, [".state/record/*/*"]), STAGES[5:]),
    "damaged report of an exit or a time": Fault(partial(damaged, [".state/exit/*", ".state/times/*"]), STAGES[1:]),
    "damaged dvc.lock": Fault(partial(damaged, ["dvc.lock"]), STAGES[1:]),
    "damaged cache": Fault(partial(damaged, [".dvc/cache/files/**/*"]), STAGES[1:]),
    "MLflow is slow": Fault(partial(mlflow_in_trouble, "slow"), WITH_MLFLOW),
    "MLflow answers 500": Fault(partial(mlflow_in_trouble, "500"), WITH_MLFLOW),
    "MLflow answers garbage": Fault(partial(mlflow_in_trouble, "garbage"), WITH_MLFLOW),
    "clock set forward": Fault(partial(clock, +3)),
    "clock set back": Fault(partial(clock, -3)),
}
