"""One stage on this machine, for a pipeline that is at home on another.

A clone at the pipeline's commit, what the stage needs restored from the DVC remote's run-cache, the stage, and the run-cache pushed:

    python -m flows.cluster.node train --repository URL --commit SHA [--settings FILE]

Slurm and Kubernetes start that on every node (flows/submit.py); a Prefect worker does the same in a flow run (flows/cluster/pools.py).
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from flows.cluster.gang import Gang
from flows.process.child import run_child
from flows.process.log import StageLog
from flows.process.repro import NOT_CACHED, StageError, ancestors, dvc, search_path, why
from flows.process.runner import exit_file, stop_on_signals
from flows.process.settings import take_over
from transformer_core.errors import ExitCode, Interrupted, UserError, configuration_error
from transformer_core.files import only_one, read_json

# Sent along, or a result: neither is part of what a commit must hold for another machine to run the same.
_NOT_COMMITTED = (":!params.yaml", ":!dvc.lock")


@dataclass(frozen=True)
class Work:
    """A stage at a commit of a repository, and the tracked sections of params.yaml that it runs with; None are the commit's own."""

    stage: str
    repository: str
    commit: str
    settings: dict[str, Any] | None = None


def run(work: Work, clone: Path, log: StageLog, gang: Gang | None = None) -> None:
    """Run a stage in a clone of its own. Node 0 of a gang, or the only one, leaves its outputs in the DVC remote.

    Raises:
        StageError: it failed; the code is the stage's.
        UserError: 78 where commit, remote or run-cache lack something, 69 where repository or remote are away, 75 where the clone is in
            use: the run before is still saving.
    """
    with only_one(clone.with_suffix(".lock"), "a stage of its clone"):
        check_out(work, clone)
        if work.settings is not None:
            take_over(work.settings, clone)
        if not restore(ancestors(work.stage, clone), clone, log):
            message = f"{log.last_line}, neither here nor in the DVC remote, and {work.stage} needs it"
            raise configuration_error(message, "On the machine that has it: dvc push --run-cache")
        exit_file(work.stage, clone).unlink(missing_ok=True)
        # DVC belongs to the node whose outputs count; the others lend their devices to the training alone.
        first = gang is None or gang.rank == 0
        command = dvc("repro", "--single-item", work.stage) if first else [sys.executable, "-m", f"flows.stages.{work.stage}"]
        environment = {"PATH": search_path(), **(gang.environment() if gang else {})}
        code = run_child(command, log, environment=environment, directory=clone)
        if code:
            raise StageError(*why(work.stage, code, log.last_line, clone))
        if first:
            push(work.stage, clone, log)


def clone_for(repository: str, rank: int) -> Path:
    """The folder in which this machine keeps its clone of a repository as a node: under $TRANSFORMER_CLONES, or the user's cache."""
    root = Path(os.environ.get("TRANSFORMER_CLONES") or Path.home() / ".cache" / "transformer-pipeline")
    return root / f"{sha256(repository.encode()).hexdigest()[:12]}-{rank}"


def check_out(work: Work, clone: Path) -> None:
    """Make the clone's tracked files those of the commit; data, caches and states that are there stay.

    Raises:
        UserError: exit code 69 where the repository cannot be read, 78 where it has no such commit.
    """
    clone.mkdir(parents=True, exist_ok=True)
    git(clone, "init", "--quiet")
    try:
        git(clone, "fetch", "--quiet", "--force", work.repository, "+refs/heads/*:refs/remotes/origin/*")
    except subprocess.CalledProcessError as error:
        raise UserError(f"{work.repository}: {_last_line(error)}", "Can this machine read it?", ExitCode.UNAVAILABLE) from None
    try:
        git(clone, "checkout", "--quiet", "--force", "--detach", work.commit)
    except subprocess.CalledProcessError:
        raise configuration_error(f"{work.repository}: no branch has commit {work.commit[:12]}", "Push it: git push") from None


def restore(stages: Sequence[str], clone: Path, log: StageLog) -> bool:
    """Put what stages make into place from the run-caches, here and of the DVC remote; whether there was all of it.

    Raises:
        StageError: there is no remote, or it is away.
    """
    command = [sys.executable, "-m", "flows.process.repro", "restore", *stages]
    code = run_child(command, log, environment={"PATH": search_path()}, directory=clone) if stages else ExitCode.DONE
    if code not in (ExitCode.DONE, NOT_CACHED):
        raise StageError(code, log.last_line)
    return code == ExitCode.DONE


def push(stage: str, clone: Path, log: StageLog) -> None:
    """Leave a stage's outputs, and the run-cache, in the DVC remote.

    Raises:
        StageError: exit code 69; the remote is away.
    """
    code = run_child(dvc("push", "--quiet", "--run-cache", stage), log, directory=clone)
    if code:
        raise StageError(ExitCode.UNAVAILABLE, f"{stage}: dvc push: {log.last_line.removeprefix('ERROR: ')}")


def committed() -> tuple[str, str]:
    """Where another machine can clone this repository from, and at which commit it is the same as here.

    Raises:
        UserError: exit code 78; something is not committed.
    """
    changed = git(Path(), "status", "--porcelain", "--", ".", *_NOT_COMMITTED)
    if changed:
        name = changed.splitlines()[0][2:].strip()
        raise configuration_error(f"{name}: not committed, and another machine runs what is", "Commit and push it, then run again.")
    remotes = git(Path(), "remote").split()
    repository = git(Path(), "remote", "get-url", remotes[0]) if remotes else git(Path(), "rev-parse", "--show-toplevel")
    return repository, git(Path(), "rev-parse", "HEAD")


def git(folder: Path, *arguments: str) -> str:
    """What a git command answers; raises CalledProcessError."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    ).stdout.strip()


def _last_line(error: subprocess.CalledProcessError) -> str:
    return str(error.stderr).strip().rpartition("\n")[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage of a pipeline on this machine, as the only node or, as $TRANSFORMER_NODES tells, as one of a gang."""
    parser = argparse.ArgumentParser(prog="python -m flows.cluster.node", description=main.__doc__)
    parser.add_argument("stage")
    parser.add_argument("--repository", required=True, metavar="URL", help="where the pipeline's repository is cloned from")
    parser.add_argument("--commit", required=True, metavar="SHA")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="sections of params.yaml that go before the commit's, as JSON")
    given = parser.parse_args(arguments)
    stop_on_signals()
    try:
        settings = read_json(given.settings) if given.settings else None
        gang = Gang.from_environment()
        work = Work(given.stage, given.repository, given.commit, settings)
        run(work, clone_for(work.repository, gang.rank if gang else 0), StageLog(_say, lambda _: None), gang)
    except Interrupted as error:
        print(f"{error}. Run it again to go on.", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except (UserError, StageError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return ExitCode.DONE


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
