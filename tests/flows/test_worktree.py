"""Worktrees of runs with other settings, in a repository of three stages."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import chdir, suppress
from hashlib import sha256
from pathlib import Path

import pytest
from dvc.repo import Repo

from flows.dvc.commands import dvc
from flows.dvc.worktree import snapshot, worktree
from tests.clone import ROOT, git
from tests.refusals import refused
from transformer_core.files import WORKTREES, read_json, repository, write_text
from transformer_core.training.checkpoint import state_root

STAGES = """
stages:
  one: {cmd: cat in/a > one.txt, deps: [in], params: [word], outs: [one.txt]}
  two: {cmd: cat one.txt dätä > two.txt, deps: [one.txt, dätä], outs: [two.txt]}
"""
IGNORED = ".state/\n__pycache__/\n"
SETTINGS = {"word": "other"}
KEY = sha256(json.dumps(SETTINGS).encode()).hexdigest()[:16]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose stages have run; one reads the data of `dvc add`."""
    folder = tmp_path_factory.mktemp("template")
    texts = {"in/a": "a", "dätä": "b", "dvc.yaml": STAGES, "params.yaml": "word: first\n", ".gitignore": IGNORED, ".dvcignore": IGNORED}
    with chdir(folder):
        git("init", "-q")
        for name, text in texts.items():
            write_text(Path(name), text)
        with Repo.init() as repo:
            repo.add("dätä")
            repo.reproduce()
        git("add", "-A")
        git("commit", "-q", "-m", "a")
    return folder


@pytest.fixture(autouse=True)
def here(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working directory."""
    folder = shutil.copytree(template, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(folder)
    return folder


def repro(folder: Path) -> str:
    return subprocess.run(dvc("repro"), cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_run_with_other_settings_changes_no_file_here_and_fills_the_cache(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = git("status", "--porcelain")
    with worktree(snapshot(), SETTINGS) as folder:
        assert folder == here / WORKTREES / KEY
        assert Path(folder, "params.yaml").read_text() == "word: other\n"
        assert "Running stage 'one'" in repro(folder)
        assert Path(folder, "two.txt").read_text() == "ab"
        with chdir(folder):  # States and record are those of the repository.
            assert (repository(), state_root()) == (here, here / ".state")
            monkeypatch.setenv("TRANSFORMER_STATE", "states")
            assert state_root() == here / "states"
    assert not folder.exists()
    assert git("status", "--porcelain") == before
    assert Path("params.yaml").read_text() == "word: first\n"
    assert git("worktree", "list").count("\n") == 0
    Path("params.yaml").write_text("word: other\n")
    assert "Running stage" not in repro(here)


def test_a_worktree_has_the_files_as_they_are_here_edits_and_untracked_ones_included() -> None:
    write_text(Path("in/a"), "edited")
    write_text(Path("in/new"), "untracked input")
    write_text(Path("corpus/big.txt"), "untracked")
    Path(os.fsdecode(b"caf\xe9")).touch()
    index = Path(".git/index").read_bytes()
    files = snapshot()
    assert Path(".git/index").read_bytes() == index
    with worktree(files, SETTINGS) as folder:
        assert Path(folder, "in/a").read_text() == "edited"
        assert Path(folder, "in/new").read_text() == "untracked input"
        assert Path(folder, "corpus").readlink() == Path("corpus").absolute()
        assert git("rev-parse", "HEAD", at=folder) == git("rev-parse", "HEAD")
        assert git("status", "--porcelain", "--", "in/a", at=folder) == "M  in/a"  # The record of a training says that it is edited.
    assert snapshot().tree == files.tree
    Path("in/a").unlink()
    with worktree(snapshot(), SETTINGS) as folder:
        assert not Path(folder, "in/a").exists()


def killed() -> Path:
    """A worktree of a process that was killed in it."""
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from flows.dvc.worktree import snapshot, worktree
with worktree(snapshot(), {SETTINGS}):
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    return WORKTREES / KEY


@pytest.mark.parametrize("damaged", [False, True])
def test_the_same_run_goes_on_in_the_worktree_of_one_that_was_killed(damaged: bool) -> None:
    folder = killed()
    write_text(folder / ".state/kept", "")
    Path(git("rev-parse", "--git-path", "index.lock", at=folder)).touch()  # Of a git that was killed, too.
    if damaged:
        (folder / ".git").unlink()
    write_text(Path("in/a"), "edited since")
    with worktree(snapshot(), SETTINGS) as again:
        assert (again / ".state/kept").exists() != damaged
        repro(again)
        assert Path(again, "two.txt").read_text() == "edited sinceb"
    assert not folder.exists()


def test_a_git_that_was_killed_while_it_made_a_worktree_is_no_obstacle() -> None:
    git("worktree", "add", "-q", "--no-checkout", "--detach", str(WORKTREES / KEY))
    Path(f".git/worktrees/{KEY}/locked").write_text("initializing")
    Path(WORKTREES / KEY, ".git").unlink()
    with worktree(snapshot(), SETTINGS) as folder:
        repro(folder)


def test_a_worktree_stays_after_a_failure_and_belongs_to_one_process() -> None:
    with suppress(ZeroDivisionError), worktree(snapshot(), SETTINGS):
        with refused(69, "this run is running in process"), worktree(snapshot(), SETTINGS):
            pass
        raise ZeroDivisionError
    assert Path(WORKTREES, KEY, "dvc.yaml").exists()


def test_the_sums_of_a_download_are_kept_here_also_after_a_failure_and_are_in_later_worktrees() -> None:
    write_text(Path("corpora/wmt.yaml"), "")
    git("add", "corpora")
    files = snapshot()
    with suppress(ZeroDivisionError), worktree(files, SETTINGS) as folder:
        write_text(folder / "corpora/wmt.lock", '{"https://example.org/a": "0"}')
        raise ZeroDivisionError
    assert read_json(Path("corpora/wmt.lock")) == {"https://example.org/a": "0"}
    with worktree(files, {"word": "third"}) as folder:
        assert read_json(folder / "corpora/wmt.lock") == {"https://example.org/a": "0"}


def test_without_a_commit_at_the_top_of_a_repository_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("in", ".."):
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            with refused(78):
                snapshot()
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    with refused(78, "Runs with other settings need a commit"):
        snapshot()
