"""`python -m flows.status`: what runs here since when, how far trainings are, what MLflow lacks, and which GPUs are free."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from flows.process.gpus import take_if_free, visible_gpus
from flows.process.paths import STATE, UPDATES
from flows.process.runner import reports_errors
from flows.record.alarms import link_of
from flows.record.run import NAME, read_record, records
from flows.record.sending import unsent
from flows.record.server import tracking_uri
from flows.record.usage import RUN
from transformer_core.cli.arguments import Parser
from transformer_core.config import load_params
from transformer_core.files import WORKTREES, is_locked


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Print what runs in this repository and its worktrees, where and since when, the GPUs of this machine, and what MLflow lacks."""
    Parser(prog="python -m flows.status", description=main.__doc__).parse_args(arguments)
    for title, lines in {"runs": running(), "trainings": trainings(), "GPUs": gpus(), "not in MLflow": not_sent()}.items():
        print(f"{title}:", *([f"  {line}" for line in lines] or ["  none"]), sep="\n")
    return 0


def running() -> Iterator[str]:
    """Yield the locks that are held: stages here and in worktrees, jobs of a place, and runs with settings of their own."""
    for folder in (Path(), *WORKTREES.glob("*/")):
        for lock in sorted(filter(is_locked, (folder / STATE / "locks").glob("*"))):
            yield f"{lock.name}{_where(lock)}{f', in {folder}' if folder != Path() else ''}"
    for lock in sorted(filter(is_locked, WORKTREES.glob("*.lock"))):
        yield f"{lock.with_suffix('')}{_where(lock)}"


def _where(lock: Path) -> str:
    """Return the process and host in a lock, which wrote them when it took the lock."""
    since = datetime.fromtimestamp(lock.stat().st_mtime).astimezone()
    return f": process {lock.read_text(encoding='utf-8')} since {since:%Y-%m-%d %H:%M}"


def trainings() -> Iterator[str]:
    """Yield the trainings that run, with their last recorded update and how long ago it was."""
    from transformer_core.training.checkpoint import TRAINING_LOCK, state_root  # Here: torch takes seconds to load.

    folders = {file.parent for file in state_root().glob(f"*/{TRAINING_LOCK}") if is_locked(file)}
    for state in sorted(folders - {records()}):  # Whose sender has a lock, too.
        identity = (state / RUN).read_text(encoding="utf-8") if (state / RUN).exists() else ""
        record, table = read_record(identity) if identity else None, records() / identity / UPDATES.name
        name = record.tags.get(NAME, "") if record else "begins"
        yield f"{state.name}: {name}{_where(state / TRAINING_LOCK)}{_last_update(table)} {link_of(identity)}".rstrip()


def _last_update(table: Path) -> str:
    rows = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    if len(rows) < 2:
        return ", no update recorded yet"
    return f", update {int(rows[-1].split(',')[0]):,} {time.time() - table.stat().st_mtime:,.0f} s ago"


def not_sent() -> Iterator[str]:
    """Yield the records that MLflow may lack."""
    for record in filter(None, map(read_record, unsent(tracking_uri(load_params().machine)))):
        yield f"{record.id}: {record.tags.get(NAME, '')}, {record.status.lower()}"


def gpus() -> Iterator[str]:
    """Yield the GPUs that this process may use, and whether a stage of this machine uses them."""
    for name, uuid in visible_gpus().items():
        with ExitStack() as held:
            yield f"{name}: {'free' if take_if_free(uuid, held) else 'in use by a stage'}"


if __name__ == "__main__":
    raise SystemExit(main())
