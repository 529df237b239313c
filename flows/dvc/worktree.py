"""Worktrees: a run with settings of its own works in a git worktree of this repository, and params.yaml here stays as it is.

A worktree has the tracked files as they are here, edits included, and links to untracked ones; the DVC cache of this repository; and this
repository's states of trainings, record and mirror (`transformer_core.files.repository`). It is removed when its run has succeeded: the
cache has the outputs. After a failure it stays, and the same run goes on in it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from flows.dvc.commands import DVC_FILE, dvc, repair, repository_stages
from flows.dvc.settings import MACHINE
from flows.process.paths import DVC_LOCK, STATE
from transformer_core.config import PARAMS_FILE
from transformer_core.corpus.sources.fetching import locked_sums
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import WORKTREES, locked, write_json, write_text
from transformer_core.project import git
from transformer_core.yaml_io import yaml_text

CORPORA = Path("corpora")
# Written in a worktree, so no links.
_OWN = {str(DVC_LOCK), str(PARAMS_FILE), str(STATE)}


class Snapshot(NamedTuple):
    """The files of this repository at one moment: the commit, the tree of the tracked files, the untracked ones, and the DVC cache."""

    commit: str
    tree: str
    untracked: tuple[str, ...]
    cache: Path


def snapshot() -> Snapshot:
    """Return a snapshot of the repository in the working directory. Untracked files in folders that stages depend on are in its tree.

    Git's own index is left alone: other commands may use it.

    Raises `UserError` (78): this is not the top of a git repository, or it has no commit.
    """
    from dvc.repo import Repo  # type: ignore[import-untyped]  # Here, because importing DVC starts a thread.

    remedy = "Runs with other settings need a commit: git add -A && git commit"
    commit = git(Path(), "rev-parse", "--verify", "HEAD^{commit}", remedy=remedy)
    if prefix := git(Path(), "rev-parse", "--show-prefix"):
        raise configuration_error(f"{prefix}: not the top of its git repository", "Make it a repository of its own: git init")
    with TemporaryDirectory() as folder:
        index, mine = Path(folder, "index"), Path(git(Path(), "rev-parse", "--git-path", "index"))
        if mine.exists():
            shutil.copyfile(mine, index)
        there = {"GIT_INDEX_FILE": str(index)}
        git(Path(), "add", "--update", ".", **there)
        inputs = {path.partition("/")[0] for stage in repository_stages().values() for path in stage.get("deps", [])}
        if new := _untracked(there, *(name for name in sorted(inputs) if Path(name).exists())):
            git(Path(), "add", "--", *new, **there)
        tree = git(Path(), "write-tree", **there)
        untracked = _untracked(there, "--directory", "--no-empty-directory", ".")
    with Repo() as repo:
        cache = Path(repo.cache.local_cache_dir)
    return Snapshot(commit, tree, tuple(name for name in untracked if name.rstrip("/") not in _OWN), cache)


def _untracked(index: Mapping[str, str], *arguments: str) -> list[str]:
    listed = git(Path(), "ls-files", "-z", "--others", "--exclude-standard", *arguments, **index)
    return [name for name in listed.split("\0") if name]


@contextmanager
def worktree(files: Snapshot, document: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a worktree with the files of a snapshot and a document as its params.yaml, named after the tracked sections.

    It is removed after the block, and stays after an exception. Raises `UserError`: 69, another process works in it; 78, git fails.
    """
    tracked = {name: section for name, section in document.items() if name != MACHINE}
    folder = WORKTREES.absolute() / sha256(json.dumps(tracked, sort_keys=True).encode()).hexdigest()[:16]
    with locked(folder.with_suffix(".lock"), "this run"):
        try:
            _check_out(folder, files)
        except (UserError, subprocess.CalledProcessError) as error:
            reason = error.message if isinstance(error, UserError) else str(error.stderr).partition("\n")[0]
            raise configuration_error(f"{folder}: {reason}", "Repair it, or remove this folder: it will be made again.") from None
        _copy_sums(Path(), folder)
        write_text(folder / PARAMS_FILE, yaml_text(document))
        names = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard", f"*{DVC_FILE}").split("\0")
        if names := [*filter(None, names)]:  # A stage whose data the cache lacks says so.
            subprocess.run(dvc("checkout", "--allow-missing", *names), cwd=folder, check=False, capture_output=True)
        try:
            yield folder
        finally:
            _copy_sums(folder, Path())
        git(Path(), "worktree", "remove", "--force", "--force", str(folder))


def remove_worktree(folder: Path) -> None:
    """Remove a worktree that a failed run has left. Raises `UserError` (69): a run works in it."""
    with locked(folder.absolute().with_suffix(".lock"), "this run"):
        with suppress(UserError):  # Git does not know it, as in a repository that was moved.
            git(Path(), "worktree", "remove", "--force", "--force", str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _check_out(folder: Path, files: Snapshot) -> None:
    """Write the files of a snapshot to a worktree, which is made if needed; ignored files, such as outputs and logs, stay as they are."""
    if not _is_worktree(folder):
        shutil.rmtree(folder, ignore_errors=True)
        # Twice --force: git may have been killed while it made one.
        git(Path(), "worktree", "add", "--quiet", "--force", "--force", "--no-checkout", "--detach", str(folder), files.commit)
    # A git that was killed leaves its lock, and no other git works here.
    (folder / git(folder, "rev-parse", "--git-path", "index.lock")).unlink(missing_ok=True)
    git(folder, "update-ref", "--no-deref", "HEAD", files.commit)
    git(folder, "read-tree", "--reset", "-u", files.tree)
    for name in files.untracked:
        link = folder / name
        if not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(name).absolute())
    for mine in (DVC_LOCK, Path(".dvc/config.local")):
        if mine.exists():
            shutil.copyfile(mine, folder / mine)
    subprocess.run(dvc("cache", "dir", "--local", str(files.cache)), cwd=folder, check=True, capture_output=True, text=True)
    with chdir(folder):
        repair()


def _copy_sums(here: Path, there: Path) -> None:
    """Copy the sums of downloads that are new since the snapshot; a person commits them."""
    for file in (here / CORPORA).glob("*.lock"):
        sums, known = locked_sums(file), locked_sums(there / CORPORA / file.name)
        if sums.keys() - known.keys():
            write_json(there / CORPORA / file.name, dict(sorted({**sums, **known}.items())))


def _is_worktree(folder: Path) -> bool:
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel")) == folder.resolve()
    except UserError:
        return False
