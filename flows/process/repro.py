"""What DVC knows of the stages, how it is asked to run one or to restore what another machine ran, and how a failure reads.

python -m flows.process.repro restore STAGE ...     from this cache or the DVC remote's; ends with 1 where one would have to run instead
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from graphlib import TopologicalSorter
from pathlib import Path

from flows.process.runner import BUG, ENDED_BY, exit_file, shell_code
from transformer_core.errors import ExitCode, UserError, configuration_error, first_line
from transformer_core.files import read_json

KILLED, TERMINATED = ENDED_BY + signal.SIGKILL, ENDED_BY + signal.SIGTERM
# What may pass by itself: a service that is away, a stop after which the state is saved, a death.
TRANSIENT = frozenset({ExitCode.UNAVAILABLE, ExitCode.INTERRUPTED, KILLED, TERMINATED})
NOT_CACHED = 1
_STAGE_ENDED = re.compile(r"exited with (-?\d+)$")  # How DVC says it: dvc.stage.exceptions.StageCmdFailedError.


class StageError(Exception):
    """A stage, or what DVC or git did for it, ended with `exit_code`, for the reason in the message."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(f"{message} (exit code {exit_code})")
        self.exit_code = exit_code


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
    code = shell_code(int(seen.group(1)) if seen else dvc_code)
    return code or BUG, f"{name}: {last_line.removeprefix('ERROR: ') or 'DVC ended without a word'}"


def restore(names: Sequence[str], root: Path = Path()) -> str | None:
    """Put the outputs of stages, in an order in which they can run, into place: from the run-caches here and of the DVC remote.

    Nothing is run. (`dvc repro --dry` does not tell what would be: it looks runs up by what dvc.lock says, not by what is there.)

    Returns:
        The first stage that neither has, or None where all are restored.

    Raises:
        UserError: exit code 78 where no remote is configured, 69 where it is away.
    """
    from dvc.config import NoRemoteError  # type: ignore[import-untyped]
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc.stage.cache import RunCacheNotFoundError  # type: ignore[import-untyped]

    try:
        with Repo(str(root)) as repo:
            repo.stage_cache.pull(None)
            for name in names:
                try:
                    with repo.lock:
                        (stage,) = repo.stage.collect(name)
                        if stage.changed():
                            repo.stage_cache.restore(stage, pull=True)
                except RunCacheNotFoundError:
                    return name
                repo.reproduce(name, single_item=True)  # Finds it in the cache and writes dvc.lock.
    except NoRemoteError:
        message = "no DVC remote is configured, and machines hand stages over through it"
        raise configuration_error(message, "Name one and commit it: dvc remote add --default store URL") from None
    except (DvcException, OSError) as error:
        raise UserError(f"the DVC remote is away: {first_line(error)}", "", ExitCode.UNAVAILABLE) from error
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Restore the outputs of stages without running any."""
    parser = argparse.ArgumentParser(prog="python -m flows.process.repro", description=main.__doc__)
    parser.add_argument("action", choices=["restore"])
    parser.add_argument("stages", nargs="+", metavar="STAGE")
    given = parser.parse_args(arguments)
    try:
        missing = restore(given.stages)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if missing is not None:
        print(f"{missing}: in no run-cache")
        return NOT_CACHED
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
