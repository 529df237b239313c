"""`flows.retention` and `flows.status` in a repository with something of each kind."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import md5
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows import retention, status
from flows.dvc.worktree import remove_worktree
from flows.record.run import NAME, RunRecord, records
from flows.record.sending import sync
from tests.clone import git
from tests.flows.stages import set_params
from tests.refusals import refused
from transformer_core.files import WORKTREES, locked, write_text

DVC_YAML = "stages: {one: {cmd: cp in.txt one.txt, deps: [in.txt], outs: [one.txt]}}"
STATE = Path(".state/0123456789abcdef")
Program = Callable[[str, str], None]


@pytest.fixture
def repository(mlflow_store: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose stage has run with two inputs, of which the second is committed; a state and a worktree are left."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    set_params()
    git("init", "-q")
    repo = Repo.init()
    Path("dvc.yaml").write_text(DVC_YAML)
    for content in ("first", "second"):
        Path("in.txt").write_text(content)
        repo.reproduce()
    git("add", "-A")
    git("commit", "-q", "-m", "a")
    write_text(STATE / "state-00000020.pt", "weights")
    git("worktree", "add", "-q", "--detach", str(WORKTREES / "left"))
    return Path.cwd()


def objects() -> set[str]:
    return {file.read_text() for file in Path(".dvc/cache/files/md5").glob("*/*")}


def grow_old(days: int) -> None:
    then = time.time() - 86400 * days
    for path in Path().rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


@pytest.mark.usefixtures("repository")
def test_what_is_old_is_shown_and_only_removed_when_asked_and_what_a_commit_or_run_needs_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert retention.main([]) == 0
    assert capsys.readouterr().out == "nothing is older than 30 days\n"
    shutil.rmtree(".git/worktrees/left")  # As if the repository had been moved.
    grow_old(31)
    retention.main(["--days", "40"])
    assert capsys.readouterr().out == "nothing is older than 40 days\n"
    for free in ([], ["--free"]):
        assert (objects(), STATE.exists(), (WORKTREES / "left").exists()) == ({"first", "second"}, True, True)
        assert retention.main(free) == 0
        kinds = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()[:3]]
        assert kinds == ["states: 1", "worktrees: 1", "DVC cache: 1"]
    assert (objects(), STATE.exists(), (WORKTREES / "left").exists()) == ({"second"}, False, False)


@pytest.mark.usefixtures("repository")
def test_what_a_commit_of_any_branch_or_an_experiment_needs_stays_also_the_files_of_a_folder() -> None:
    for ref in ("refs/heads/side", "refs/tags/v1", "refs/exps/ab/c"):
        Path("dvc.yaml").write_text("stages: {one: {cmd: mkdir -p one && cp in.txt one, deps: [in.txt], outs: [one]}}")
        Path("in.txt").write_text(ref)
        Repo().reproduce()
        git("commit", "-q", "-m", ref, "dvc.yaml", "dvc.lock", "in.txt")
        git("update-ref", ref, "HEAD")
        git("reset", "-q", "--hard", "HEAD~")
    git("merge", "-q", "--strategy=ours", "-m", "dropped", "side")
    git("branch", "-q", "-D", "side")
    grow_old(31)
    assert retention.main(["--free"]) == 0
    listings = {file.read_text() for file in Path(".dvc/cache/files/md5").glob("*/*.dir")}
    assert objects() - listings == {"second", "refs/heads/side", "refs/tags/v1", "refs/exps/ab/c"}
    assert len(listings) == 3


@pytest.mark.usefixtures("repository")
def test_a_new_clone_without_its_cache_has_nothing_old(capfd: pytest.CaptureFixture[str]) -> None:
    Path("dvc.yaml").write_text("stages: {one: {cmd: mkdir -p one && cp in.txt one, deps: [in.txt], outs: [one]}}")
    Repo().reproduce()
    shutil.rmtree(".dvc/cache")
    capfd.readouterr()
    assert retention.main([]) == 0
    assert capfd.readouterr() == ("nothing is older than 30 days\n", "")
    Path("dvc.yaml").write_text("stages: [")
    assert retention.main([]) == 78
    assert re.fullmatch(r"dvc: .*dvc\.yaml.*\. Check it with: dvc status\n", capfd.readouterr().err)


@pytest.mark.usefixtures("repository")
def test_what_a_worktree_names_stays_with_it() -> None:
    grow_old(31)
    (WORKTREES / "left/dvc.lock").write_text(f"md5: {md5(b'first').hexdigest()}")
    assert retention.main(["--free"]) == 0
    assert (objects(), (WORKTREES / "left").exists()) == ({"first", "second"}, True)


@pytest.mark.usefixtures("repository")
def test_what_a_process_uses_and_what_a_recent_run_has_made_stays() -> None:
    grow_old(31)
    for run in Path(".dvc/cache/runs").glob("*/*/*"):
        run.touch()
    with locked(STATE / "lock", "this training"), locked(WORKTREES / "left.lock", "this run"):
        assert retention.main(["--free"]) == 0
        with refused(69, "this run is running"):
            remove_worktree(WORKTREES / "left")
    assert (objects(), STATE.exists(), (WORKTREES / "left").exists()) == ({"first", "second"}, True, True)


@pytest.mark.usefixtures("repository")
def test_the_status_names_what_runs_where_and_how_far_it_is(
    mlflow_store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, program: Program
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program("nvidia-smi", 'printf "0, GPU-a\\n1, GPU-b\\n"')
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    status.main([])
    nothing = "runs:\n  none\ntrainings:\n  none\nGPUs:\n  GPU-a: free\n  GPU-b: free\nnot in MLflow:\n  none\n"
    assert capsys.readouterr().out == nothing
    record = RunRecord(id="f00d", tags={NAME: "tatoeba en-de"})
    record.write()
    sync(mlflow_store)
    write_text(record.folder / "updates.csv", "update,loss,seconds\n20,3.5,1\n1240,3.0,2\n")
    write_text(STATE / "run", "f00d")
    holds = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('x', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", holds, str(tmp_path / "transformer-gpu-GPU-b.lock")], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        stage, sender = Path(".state/locks/train"), records() / "lock"
        with locked(stage, "stage train"), locked(STATE / "lock", "this training"), locked(sender, "sender"):
            status.main([])
        other.kill()
    lines = capsys.readouterr().out.splitlines()
    here = f": process {os.getpid()} on {os.uname().nodename} since 2"
    assert lines[1].startswith(f"  train{here}")
    assert lines[3].startswith(f"  {STATE.name}: tatoeba en-de{here}")
    assert re.search(r", update 1,240 \d+ s ago http://127\.0\.0\.1:5000/#/experiments/", lines[3])
    assert lines[5:7] == ["  GPU-a: free", "  GPU-b: in use by a stage"]
    assert lines[8:] == ["  f00d: tatoeba en-de, running"]
