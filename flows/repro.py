"""What DVC knows of the stages, how it is asked to run one, and how a failure reads."""

import os
import re
import signal
import sys
from graphlib import TopologicalSorter
from pathlib import Path

from flows.runner import BUG, exit_file
from flows.tracking import first_line
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.files import read_json

KILLED, TERMINATED = 128 + signal.SIGKILL, 128 + signal.SIGTERM
# What may pass by itself: a service that is away, a stop after which the state is saved, a death.
TRANSIENT = frozenset({ExitCode.UNAVAILABLE, ExitCode.INTERRUPTED, KILLED, TERMINATED})
_STAGE_ENDED = re.compile(r"exited with (-?\d+)$")  # How DVC says it: dvc.stage.exceptions.StageCmdFailedError.


class StageError(Exception):
    """A stage, or what DVC or git did for it, ended with `code`, for the reason in the message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (exit code {code})")
        self.code = code


def stage_names(root: Path = Path()) -> list[str]:
    """The stages of a DVC repository in an order in which they can run.

    Raises:
        UserError: exit code 78; there is no repository, or its dvc.yaml is wrong.
    """
    return list(TopologicalSorter(_needed(root)).static_order())


def ancestors(name: str, root: Path = Path()) -> list[str]:
    """The stages that a stage needs, directly or not, in an order in which they can run.

    Raises:
        UserError: as `stage_names`; or there is no such stage.
    """
    needed = _needed(root)
    if name not in needed:
        raise configuration_error(f"no stage is called {name!r}", f"Stages: {', '.join(needed)}.")
    found, seen = {name}, [name]
    while seen:
        new = set(needed[seen.pop()]) - found
        found |= new
        seen += new
    return [stage for stage in TopologicalSorter(needed).static_order() if stage in found - {name}]


def _needed(root: Path) -> dict[str, list[str]]:
    from dvc.exceptions import DvcException  # type: ignore[import-untyped]  # Here, because importing DVC starts a thread.
    from dvc.repo import Repo  # type: ignore[import-untyped]

    try:
        with Repo(str(root)) as repo:
            graph = repo.index.graph
            return {stage.name: [other.name for other in graph.successors(stage) if other.cmd] for stage in graph if stage.cmd}
    except DvcException as error:
        raise configuration_error(first_line(error), "Run this at the top of the repository; check it with: dvc status") from None


def dvc(*arguments: str) -> list[str]:
    """A command of DVC, which waits its turn where another one is at work in the repository."""
    return [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]


def search_path() -> str:
    """$PATH for DVC: dvc.yaml says `python`, which is to be the one that runs this, whichever comes first in the user's path."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def why(name: str, dvc_code: int, last_line: str, root: Path = Path()) -> tuple[int, str]:
    """Exit code and reason of a stage that failed: its own word, or, where it was killed before it had one, what DVC saw."""
    ended = exit_file(name, root)
    if ended.exists():
        said = read_json(ended)
        reason = str(UserError(said["message"], said["remedy"]))
        return said["code"], reason if reason.startswith(f"{name}:") else f"{name}: {reason}"
    seen = _STAGE_ENDED.search(last_line)
    code = int(seen.group(1)) if seen else dvc_code
    if code < 0:  # The signal that ended it, as Python tells it; a shell adds 128.
        code = 128 - code
    return code or BUG, f"{name}: {last_line.removeprefix('ERROR: ') or 'DVC ended without a word'}"
