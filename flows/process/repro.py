"""DVC: the order of the stages, its commands, the exchange of outputs with other machines, and the reason of a failure.

python -m flows.process.repro restore STAGE ...     from the local cache or the DVC remote; exit code 66 where a stage would have to run
python -m flows.process.repro push STAGE ...        to the DVC remote, with the run-cache
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from flows.process.exits import BUG, shell_code
from flows.process.paths import DVC_LOCK
from flows.process.runner import exit_file, reports_errors
from transformer_core.errors import ExitCode, UserError, configuration_error, disk_error, first_line
from transformer_core.files import read_json
from transformer_core.yaml_io import read_yaml

NOT_CACHED = 66  # After sysexits.h: an input does not exist.
DVC_FILE = ".dvc"
_WRITING_SECONDS = 0.5
_ADVICE = {
    "Updating lock file 'dvc.lock'",
    "To track the changes with git, run:",
    "git add dvc.lock",
    "To enable auto staging, run:",
    "dvc config core.autostage true",
    "Use `dvc push` to send your updates to remote storage.",
    "Data and pipelines are up to date.",
}
_COMMAND = "> exec sh "  # Begins DVC's line with the command of a stage.
# The end of DVC's message where a stage of another DVC command is running, for which `--wait-for-lock` does not wait.
_STAGE_BUSY = re.compile(r"you can manually remove '.*rwlock' and try again\.$")
_STAGE_FAILED = re.compile(r"failed to reproduce '([^']+)'")  # The message of dvc.exceptions.ReproductionError.
_STAGE_ENDED = re.compile(r"exited with (-?\d+)$")  # The message of dvc.stage.exceptions.StageCmdFailedError.


def stage_names() -> list[str]:
    """Return the stages of the DVC repository in the working directory, in an order in which they can run.

    Raises `UserError` (78): no repository, or its dvc.yaml is invalid.
    """
    return [name for name in TopologicalSorter(_needed(Path())).static_order() if not name.endswith(DVC_FILE)]


def ancestors(name: str, root: Path = Path()) -> list[str]:
    """Return the stages, and the .dvc files of `dvc add`, that a stage depends on, directly or not, in an order in which they can run.

    Raises `UserError`: as `stage_names`, or no such stage.
    """
    needed = _needed(root)
    if name not in needed:
        raise configuration_error(f"no stage is called {name!r}", f"Stages: {', '.join(needed)}.")
    order, found = list(TopologicalSorter(needed).static_order()), {name}
    for stage in reversed(order):  # A stage comes after all that it needs.
        if stage in found:
            found.update(needed[stage])
    return [stage for stage in order if stage in found - {name}]


def _needed(root: Path) -> dict[str, list[str]]:
    from dvc.exceptions import DvcException  # type: ignore[import-untyped]  # Here, because importing DVC starts a thread.
    from dvc.repo import Repo  # type: ignore[import-untyped]

    repair(root)
    try:
        with Repo(str(root)) as repo:
            graph = repo.index.graph
            # A .dvc file holds one stage, without a name.
            names = {stage: stage.name if stage.cmd else Path(stage.path).relative_to(repo.root_dir).as_posix() for stage in graph}
            return {name: [names[other] for other in graph.successors(stage)] for stage, name in names.items()}
    except DvcException as error:
        raise configuration_error(first_line(error), "Run this at the top of the repository; check it with: dvc status") from None


def locked_stages() -> dict[str, Any]:
    """Return the stages in dvc.lock, by name; none without the file."""
    return dict(read_yaml(DVC_LOCK)["stages"]) if DVC_LOCK.exists() else {}


def dvc(*arguments: str) -> list[str]:
    """Return a command line of DVC that waits while another DVC command has the repository's lock, but not while that runs a stage."""
    return [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]


def repair(root: Path = Path()) -> None:
    """Remove DVC's record of running commands if it is not JSON, and dvc.lock if it is empty.

    DVC writes both in place, so a kill may leave an empty file. Every later command then ends with "Unable to read RWLock-file", or with
    "'dvc.lock' validation failed". DVC finds what dvc.lock had recorded in its run-cache.
    """
    for file, is_damaged in ((root / ".dvc" / "tmp" / "rwlock", _is_no_json), (root / DVC_LOCK, _is_empty)):
        # Looked at twice, because another DVC may be writing it.
        if is_damaged(file):
            time.sleep(_WRITING_SECONDS)
            if is_damaged(file):
                file.unlink(missing_ok=True)


def _is_no_json(file: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            read_json(file)
        except UserError:
            return True
    return False


def _is_empty(file: Path) -> bool:
    with suppress(FileNotFoundError):
        return not file.stat().st_size
    return False


def without_advice(write: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that writes a line, unless DVC prints it for each stage: what to type next, and the command of the stage."""
    return lambda line: None if line.strip() in _ADVICE or line.startswith(_COMMAND) else write(line)


def search_path() -> str:
    """Return $PATH for DVC, in which `python` is this interpreter."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def with_stage_name(stage: str, message: str) -> str:
    """Return a message that begins with the name of the stage."""
    return message if message.startswith(f"{stage}:") else f"{stage}: {message}"


def failed_stage(last_line: str) -> str | None:
    """Return the stage that the last line of `dvc repro` names as failed, or None."""
    found = _STAGE_FAILED.search(last_line)
    return found and found[1]


def failure(name: str, dvc_code: int, last_line: str, root: Path = Path()) -> tuple[int, str]:
    """Return exit code and reason of a failed stage: from its own report or, if that is missing or damaged, from DVC."""
    if _STAGE_BUSY.search(last_line):
        return ExitCode.UNAVAILABLE, f"{name}: {_busy()}"
    with suppress(OSError, UserError, KeyError, TypeError, ValueError, OverflowError):
        found = read_json(exit_file(name, root))
        reason = str(UserError(str(found["message"]), str(found["remedy"])))
        if code := int(found["code"]):  # Otherwise DVC failed after the stage.
            return code, with_stage_name(name, reason)
    seen = _STAGE_ENDED.search(last_line)
    code = shell_code(int(seen.group(1)) if seen else dvc_code)
    return code or BUG, f"{name}: {last_line.removeprefix('ERROR: ') or 'DVC ended without a message'}"


def _busy() -> UserError:
    return UserError("another DVC command runs a stage in this repository", "Wait until it ends, then run again.", ExitCode.UNAVAILABLE)


def restore(names: Sequence[str]) -> str | None:
    """Restore the outputs of stages, given in an order in which they can run, from the run-caches here and in the DVC remote.

    The data of .dvc files come from the cache and the remote. No stage runs. (`dvc repro --dry` does not help: it looks runs up by
    dvc.lock, not by the files in the workspace.)

    Returns:
        The first stage that neither run-cache has, or None if all are restored.

    Raises:
        UserError: exit code 78 if no remote is configured, or if an input of a stage, which no earlier stage makes, is not in this
            repository; 69 if the remote is unreachable, or has outputs of a stage that could not be downloaded.
        OSError: the disk of this machine is full or read-only.
    """
    from dvc.repo import Repo
    from dvc.stage.cache import RunCacheNotFoundError  # type: ignore[import-untyped]

    with _disk_errors() as errors, _remote_errors(), Repo(_wait_for_lock=True) as repo:
        runs = repo.stage_cache.pull(None)
        failed: list[str] = []
        repo.cloud.pull = _noting_failures(repo.cloud.pull, failed, errors)
        for name in names:
            if name.endswith(DVC_FILE):
                repo.pull([name])
                continue
            try:
                with repo.lock:
                    (stage,) = repo.stage.collect(name)
                    # DVC would look its run up by the sum of each input; its own error does not say whose file is missing.
                    if missing := next((dep.def_path for dep in stage.deps if not dep.exists), None):
                        message = f"{missing}: no such file or folder here, and stage {name} depends on it"
                        remedy = "Restore it with dvc pull or git checkout. If it is in neither: dvc add or git add it, then push."
                        raise configuration_error(message, remedy)
                    failed.clear()
                    if stage.changed():
                        repo.stage_cache.restore(stage, pull=True)
            except RunCacheNotFoundError:
                # DVC only logs a failed download and then raises this, as if nobody had run the stage.
                failed += _runs_not_here(repo, stage, runs)
                if failed:
                    message = f"{name}: the DVC remote has its outputs, but {failed[0]} could not be downloaded"
                    raise UserError(message, "", ExitCode.UNAVAILABLE) from None
                return name
            repo.reproduce(name, single_item=True)  # Finds it in the cache and writes dvc.lock.
    return None


def _noting_failures(pull: Callable[..., Any], failed: list[str], errors: list[BaseException]) -> Callable[..., Any]:
    """Return a function like `DataCloud.pull` that adds what the remote has and could not be downloaded to `failed`, why to `errors`."""

    def noting(objects: Iterable[Any], *arguments: Any, **options: Any) -> Any:
        wanted = list(objects)
        try:
            result = pull(wanted, *arguments, **options)
        except Exception as error:  # DVC suppresses it where it downloads the list of a folder's files.
            failed.extend(str(entry.value) for entry in wanted)
            errors.append(error)
            raise
        failed.extend(str(entry.value) for entry in result.failed)
        return result

    return noting


def _runs_not_here(repo: Any, stage: Any, runs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the runs of a stage in the remote's run-cache that could not be downloaded."""
    from dvc.stage.cache import _can_hash, _get_stage_hash

    if not _can_hash(stage):
        return []
    key = _get_stage_hash(stage)
    folder = Path(repo.stage_cache.cache_dir, key[:2], key)
    return [run for other, run in runs if other == key and not (folder / run).exists()]


def push(names: Sequence[str]) -> None:
    """Push the outputs of stages and the run-cache to the DVC remote.

    Raises `UserError`: 78 if no remote is configured, 69 if it is unreachable.
    """
    from dvc.repo import Repo

    with _remote_errors(), Repo(_wait_for_lock=True) as repo:
        repo.push(targets=list(names), run_cache=True)


class _LoggedErrors(logging.Handler):
    """A handler that keeps the exceptions in a log."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.errors.append(record.exc_info[1])


@contextmanager
def _disk_errors() -> Iterator[list[BaseException]]:
    """Raise the error of a full or read-only disk in place of the `UserError` that follows from it.

    If a file cannot be written, DVC only logs the error, or suppresses it, or raises another one, which does not give the reason. Yields
    the list of errors in DVC's log, to which the block adds suppressed ones.
    """
    log = _LoggedErrors()
    loggers = [logging.getLogger(name) for name in ("dvc_data", "dvc_objects")]
    for logger in loggers:
        logger.addHandler(log)
    try:
        yield log.errors
    except UserError as error:
        causes, cause = log.errors, error.__cause__
        while cause:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        raise next(filter(disk_error, causes), error) from None
    finally:
        for logger in loggers:
            logger.removeHandler(log)


@contextmanager
def _remote_errors() -> Iterator[None]:
    """Report an error of the DVC remote as a `UserError`; its client libraries raise exceptions of many types."""
    from dvc.config import NoRemoteError  # type: ignore[import-untyped]
    from dvc.lock import LockError  # type: ignore[import-untyped]

    try:
        yield
    except UserError:
        raise
    except NoRemoteError:
        message = "no DVC remote is configured, and machines exchange outputs of stages through it"
        raise configuration_error(message, "Name one and commit it: dvc remote add --default store URL") from None
    except LockError:
        raise _busy() from None
    except Exception as error:
        raise UserError(f"the DVC remote is unreachable: {first_line(error)}", "", ExitCode.UNAVAILABLE) from error


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Exchange the outputs of stages with the DVC remote, without running any stage."""
    from transformer_core.cli.arguments import Parser  # Here, because stages import this module, and do not depend on that code.

    parser = Parser(prog="python -m flows.process.repro", description=main.__doc__)
    parser.add_argument("action", choices=["restore", "push"])
    parser.add_argument("stages", nargs="+", metavar="STAGE")
    options = parser.parse_args(arguments)
    if options.action == "push":
        push(options.stages)
        return ExitCode.DONE
    missing = restore(options.stages)
    if missing is not None:
        print(f"{missing}: in no run-cache")
        return NOT_CACHED
    return ExitCode.DONE


if __name__ == "__main__":
    raise SystemExit(main())
