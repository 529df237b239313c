"""A stage on this machine, for a pipeline on another one: a node.

It clones the repository at the pipeline's commit, restores the stage's inputs from the DVC remote's run-cache, runs the stage, and pushes
its outputs and the run-cache:

    python -m flows.cluster.node train --repository URL --commit SHA [--settings FILE]

Slurm and Kubernetes start this on every node (flows/submit.py). A Prefect worker does the same in a flow run (flows/cluster/pools.py).
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from flows.cluster.group import NodeGroup
from flows.process.child import StageLog, git, run_child
from flows.process.repro import NOT_CACHED, ancestors, dvc, failure, repair, search_path
from flows.process.runner import StageError, echo, exit_file, reports_errors
from flows.process.settings import apply_settings
from flows.process.signals import stop_on_signals
from flows.record.documents import CHECKPOINT_CONFIG, read_output
from transformer_core.cli.arguments import Parser
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.files import locked, read_json
from transformer_core.yaml_io import read_yaml

# Need not be committed: params.yaml is sent with the stage, and dvc.lock is a result.
_NOT_COMMITTED = (":!params.yaml", ":!dvc.lock")


@dataclass(frozen=True)
class StageRun:
    """A stage at a commit of a repository, and the tracked sections of params.yaml; None for those of the commit."""

    stage: str
    repository: str
    commit: str
    settings: dict[str, Any] | None = None


def run(work: StageRun, clone: Path, log: StageLog, group: NodeGroup | None = None) -> None:
    """Run a stage in a clone. Node 0 of a group, or a single node, pushes the outputs to the DVC remote.

    Raises:
        StageError: the stage failed, with its exit code, or the DVC remote is missing or unavailable.
        UserError: 78 if the repository has no such commit or an input is in no run-cache; 69 if the repository is unavailable, or if the
            clone is in use, because a previous run is still saving.
    """
    with locked(clone.with_suffix(".lock"), "a stage of its clone"):
        check_out(work, clone)
        if work.settings is not None:
            apply_settings(work.settings, clone)
        if not exchange("restore", ancestors(work.stage, clone), clone, log):
            message = f"{log.last_line}, neither here nor in the DVC remote, and {work.stage} needs it"
            raise configuration_error(message, "On the machine that has it: dvc push --run-cache")
        exit_file(work.stage, clone).unlink(missing_ok=True)
        # DVC runs only on the node that writes the outputs. The others add their devices to the training.
        first = group is None or group.rank == 0
        command = dvc("repro", "--single-item", work.stage) if first else [sys.executable, "-m", "flows.stages", work.stage]
        environment = {"PATH": search_path(), **(group.environment() if group else {})}
        code = run_child(command, log, environment=environment, directory=clone)
        if code:
            raise StageError(*failure(work.stage, code, log.last_line, clone))
        if first:
            exchange("push", [work.stage], clone, log)
            if work.stage == "train":
                _keep_state(clone)


def _keep_state(clone: Path) -> None:
    """Do what stage average does elsewhere, which does not run here: the outputs of the training are stored."""
    from transformer_core.training.checkpoint import keep_finished  # Here, because it imports torch.

    keep_finished(read_output(CHECKPOINT_CONFIG, clone)["training"]["fingerprint"], clone)


def clone_for(repository: str, rank: int) -> Path:
    """Return the folder for the clone of a repository as node `rank`, under $TRANSFORMER_CLONES or in the user's cache."""
    root = Path(os.environ.get("TRANSFORMER_CLONES") or Path.home() / ".cache" / "transformer-pipeline")
    return root / f"{sha256(repository.encode()).hexdigest()[:12]}-{rank}"


def check_out(work: StageRun, clone: Path) -> None:
    """Check out the commit's tracked files in the clone, which is created if needed; its data, caches and states are kept. Repair it.

    The caller has the lock of the clone. Raises `UserError`: 69 if the repository cannot be read, 78 if it has no such commit or the clone
    cannot be written.
    """
    clone.mkdir(parents=True, exist_ok=True)
    # A git that was killed leaves its locks, and every later one would end at them. No other git works in this clone.
    for lock in (clone / ".git").rglob("*.lock"):
        lock.unlink(missing_ok=True)
    git(clone, "init", "--quiet")
    try:
        # --prune: while a deleted branch `a` is still here, git refuses a new one `a/b`.
        git(clone, "fetch", "--quiet", "--force", "--prune", work.repository, "+refs/heads/*:refs/remotes/origin/*")
    except subprocess.CalledProcessError as error:
        raise _unreadable(work.repository, error) from None
    try:
        git(clone, "checkout", "--quiet", "--force", "--detach", work.commit)
    except subprocess.CalledProcessError as error:
        if not _has(clone, work.commit):
            raise _not_pushed(work.repository, work.commit) from None
        raise configuration_error(f"{clone}: {_reason(error)}", "Repair it, or remove this folder: it will be cloned again.") from None
    repair(clone)


def _has(clone: Path, commit: str) -> bool:
    try:
        git(clone, "cat-file", "-e", f"{commit}^{{commit}}")
    except subprocess.CalledProcessError:
        return False
    return True


def exchange(action: Literal["restore", "push"], stages: Sequence[str], clone: Path, log: StageLog) -> bool:
    """Exchange the outputs of stages and the run-cache with the DVC remote; return False if a restore finds a stage in no run-cache.

    Raises:
        StageError: there is no remote, or it is unavailable, or the disk is full.
    """
    if not stages:
        return True
    command = [sys.executable, "-m", "flows.process.repro", action, *stages]
    code = run_child(command, log, environment={"PATH": search_path()}, directory=clone)
    if code not in (ExitCode.DONE, NOT_CACHED):
        raise StageError(code, log.last_line)
    return code == ExitCode.DONE


def committed() -> tuple[str, str]:
    """Return the address of this repository for other machines (of its first remote, or else its path), and the current commit.

    Raises `UserError` (78): this is no git repository, or a change of a tracked file or an input of a stage is not committed.
    """
    try:
        commit = git(Path(), "log", "--max-count=1", "--format=%H")
    except subprocess.CalledProcessError as error:
        raise configuration_error(_reason(error), "Other machines clone a commit: run this at the top of a git repository.") from None
    inputs = _input_folders()
    for line in git(Path(), "status", "--porcelain", "--", ".", *_NOT_COMMITTED).splitlines():
        state, name = line.split(maxsplit=1)
        if state != "??" or name.strip('"').partition("/")[0] in inputs:
            remedy = "Commit and push it, large files by dvc add, then run again."
            raise configuration_error(f"{name}: not committed; other machines run the committed version", remedy)
    remotes = git(Path(), "remote").split()
    repository = git(Path(), "remote", "get-url", remotes[0]) if remotes else git(Path(), "rev-parse", "--show-toplevel")
    return repository, commit


def check_pushed(repository: str, commit: str) -> None:
    """Check that a branch of the repository has the commit, so that another machine finds it.

    Raises `UserError`: 69 if the repository cannot be read, 78 if none of its branches has the commit.
    """
    try:
        tips = {line.split()[0] for line in git(Path(), "ls-remote", "--heads", repository).splitlines()}
        if commit in tips:
            return
        if tips:
            git(Path(), "fetch", "--quiet", repository, *tips)
    except subprocess.CalledProcessError as error:
        raise _unreadable(repository, error) from None
    if git(Path(), "rev-list", "--max-count=1", commit, "--not", *tips):
        raise _not_pushed(repository, commit)


def _unreadable(repository: str, error: subprocess.CalledProcessError) -> UserError:
    remedy = "Let this machine read it: docs/cluster.md, A private repository."
    return UserError(f"{repository}: {_reason(error)}", remedy, ExitCode.UNAVAILABLE)


def _not_pushed(repository: str, commit: str) -> UserError:
    return configuration_error(f"{repository}: no branch has commit {commit[:12]}", "Push it: git push")


def _reason(error: subprocess.CalledProcessError) -> str:
    """Return the first line of git's message that is no warning. ssh warns about new hosts before it; general advice comes after it."""
    lines = (line for line in str(error.stderr).splitlines() if line and not line.lower().startswith("warning: "))
    return next(lines, "").removeprefix("fatal: ")


def _input_folders() -> set[str]:
    """Return the top-level folders and files that are dependencies of stages. An untracked file elsewhere is no input."""
    stages = read_yaml(Path("dvc.yaml"))["stages"].values()
    return {path.partition("/")[0] for stage in stages for path in stage.get("deps", [])}


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage of a pipeline on this machine, alone or, with $TRANSFORMER_NODES, as a node of a group."""
    parser = Parser(prog="python -m flows.cluster.node", description=main.__doc__)
    parser.add_argument("stage")
    parser.add_argument("--repository", required=True, metavar="URL", help="repository of the pipeline, which is cloned")
    parser.add_argument("--commit", required=True, metavar="SHA")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="sections of params.yaml, as JSON, that replace those of the commit")
    options = parser.parse_args(arguments)
    stop_on_signals()
    settings = read_json(options.settings) if options.settings else None
    group = NodeGroup.from_environment()
    work = StageRun(options.stage, options.repository, options.commit, settings)
    run(work, clone_for(work.repository, group.rank if group else 0), StageLog(lambda line: echo(line, sys.stdout)), group)
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
