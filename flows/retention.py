"""`python -m flows.retention`: what is old here and its size; `--free` removes it.

States of trainings that do not run, worktrees that failed runs have left, and objects of DVC's cache that no commit, workspace or recent
run of a stage needs; with `--free` also what `git prune` removes. Exports of models and clones of nodes are removed after their use.
"""

import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flows.dvc.commands import DVC_FILE
from flows.dvc.worktree import remove_worktree
from flows.process.paths import DVC_LOCK
from flows.process.runner import reports_errors
from transformer_core.cli.arguments import Parser, positive_int
from transformer_core.errors import UserError, configuration_error, first_line
from transformer_core.files import WORKTREES, is_locked, read_json
from transformer_core.project import check_repository, git

# An MD5 of a file or of a folder's listing in a file of DVC; not the beginning of a longer sum, such as git's.
_SUM = re.compile(rb"\b[0-9a-f]{32}(?:\.dir)?\b")


class Old(NamedTuple):
    """Something that may be removed: a kind, a folder or file, and what removes it."""

    kind: str
    path: Path
    remove: Callable[[Path], object]


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Show what has not changed for some days: states, worktrees of failed runs, unneeded objects of DVC's cache."""
    parser = Parser(prog="python -m flows.retention", description=main.__doc__)
    parser.add_argument("--days", metavar="N", type=positive_int, default=30, help="age from which something is old (default: 30)")
    parser.add_argument("--free", action="store_true", help="remove it")
    chosen = parser.parse_args(arguments)
    check_repository(Path())
    before = time.time() - 86400 * chosen.days
    found = [one for one in (*states(), *worktrees(), *cached(before)) if newest(one.path) < before]
    sizes: dict[str, list[int]] = {}
    for one in found:
        size = sum(file.lstat().st_size for file in files_of(one.path))
        with suppress(UserError):  # A process uses it now.
            if chosen.free:
                one.remove(one.path)
            sizes.setdefault(one.kind, []).append(size)
    for kind, of_kind in sizes.items():
        print(f"{kind}: {len(of_kind):,}, {sum(of_kind) / 1e6:,.1f} MB{' removed' if chosen.free else ''}")
    if chosen.free:
        git(Path(), "prune", f"--expire={max(chosen.days, 14)}.days.ago")  # Untracked files of the snapshots of runs.
    if not chosen.free or not found:
        print("Remove them with: python -m flows.retention --free" if found else f"nothing is older than {chosen.days} days")
    return 0


def files_of(path: Path) -> list[Path]:
    """Return a file, or the files below a folder."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def newest(path: Path) -> float:
    """Return the time at which a file, or the last file below a folder, was changed."""
    return max((file.lstat().st_mtime for file in files_of(path)), default=path.lstat().st_mtime)


def states() -> Iterator[Old]:
    """Yield the states of trainings that do not run."""
    from transformer_core.training.checkpoint import TRAINING_LOCK, remove_training, state_root, stopped_trainings

    for state in stopped_trainings(state_root()):
        if not is_locked(state / TRAINING_LOCK):
            yield Old("states", state, remove_training)


def worktrees() -> Iterator[Old]:
    """Yield the worktrees of runs with other settings that failed, and were not started again."""
    for folder in WORKTREES.glob("*/"):
        if not is_locked(folder.with_suffix(".lock")):
            yield Old("worktrees", folder, remove_worktree)


def cached(before: float) -> Iterator[Old]:
    """Yield the objects in DVC's cache that nothing names: no commit, experiment, worktree or workspace, and no later run of a stage."""
    from dvc.exceptions import DvcException  # type: ignore[import-untyped]
    from dvc.repo import Repo  # type: ignore[import-untyped]  # Here, because importing DVC starts a thread.

    logging.getLogger("dvc").setLevel(logging.ERROR)  # It warns of each output whose sum is not in dvc.lock.
    with Repo() as repo:
        folder, runs = Path(repo.cache.local.path), Path(repo.stage_cache.cache_dir).glob("*/*/*")
        # With `force` a folder whose listing is in no cache here, as in a new clone, needs nothing: without it its files are no folder.
        try:
            needed = {found.value for objects in repo.used_objs(force=True).values() for found in objects}
        except DvcException as error:  # Its cause names the file.
            raise configuration_error(f"dvc: {first_line(error.__cause__ or error)}", "Check it with: dvc status") from None
    files = [run.read_bytes() for run in runs if run.stat().st_mtime >= before]
    files += [lock.read_bytes() for lock in WORKTREES.glob(f"*/{DVC_LOCK}")]  # Of runs that failed, or run.
    for sum_or_folder in {found.decode() for file in (*files, committed()) for found in _SUM.findall(file)}:
        needed.add(sum_or_folder)
        listing = folder / sum_or_folder[:2] / sum_or_folder[2:]
        if listing.suffix == ".dir" and listing.exists():
            needed |= {entry["md5"] for entry in read_json(listing)}
    for file in folder.glob("*/*"):
        if file.parent.name + file.name not in needed:
            yield Old("DVC cache", file, Path.unlink)


def committed() -> bytes:
    """Return every version of dvc.lock and of .dvc files in all commits and experiments, each once: DVC itself would read all commits."""
    blobs = ["--objects", "--no-object-names", "--filter=object:type=blob", "--filter-provided-objects"]
    versions = git(Path(), "rev-list", "--all", "--full-history", *blobs, "--", f"*{DVC_LOCK}", f"*{DVC_FILE}")
    return subprocess.run(["git", "cat-file", "--batch"], input=versions.encode(), capture_output=True, check=True).stdout


if __name__ == "__main__":
    raise SystemExit(main())
