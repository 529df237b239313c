"""Where MLflow's record is. Without a server: the SQLite database mlflow.db, and beside it mlruns with the files of runs and models."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_core.config import Machine
from transformer_core.files import repository

# Before the path of a record in an SQLite database.
SQLITE = "sqlite:///"
MLFLOW_EXPERIMENT = "transformer-pipeline"
ARTIFACT_FOLDER = "mlruns"
SECONDS_TO_WAIT = 20
# The columns of MLflow's tables that hold absolute paths.
_PATHS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)


def tracking_uri(machine: Machine) -> str:
    """Return the address of MLflow's record: `machine.tracking_uri`, else $MLFLOW_TRACKING_URI, else mlflow.db, as MLflow itself has it.

    The relative path of a database begins at the repository, also in an experiment's temporary copy of it.
    """
    uri = machine.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}mlflow.db"
    return f"{SQLITE}{repository() / uri.removeprefix(SQLITE)}" if uri.startswith(SQLITE) else uri


def database(uri: str) -> Path | None:
    """Return the absolute path of an SQLite database; None for an address of another kind."""
    return (repository() / uri.removeprefix(SQLITE)).resolve() if uri.startswith(SQLITE) else None


def artifact_location(uri: str) -> str | None:
    """Return the folder of the experiment's files for an SQLite database; None leaves it to the server."""
    file = database(uri)
    return None if file is None else str(file.parent / ARTIFACT_FOLDER / MLFLOW_EXPERIMENT)


def prepare(file: Path) -> None:
    """Create a missing database, and correct the paths in one that was moved or copied together with its folder mlruns."""
    if not file.exists():
        _create(file)
    _correct_paths(file)


def _create(file: Path) -> None:
    """Create the database under a temporary name, and link it to its own name once it is complete.

    MLflow creates the tables one by one. If two processes do that in one file, both fail and leave an unusable database.
    """
    from mlflow import MlflowClient

    folder = file.parent / ARTIFACT_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".new-", ignore_cleanup_errors=True) as temporary:
        new = Path(temporary) / file.name
        MlflowClient(f"{SQLITE}{new}").search_experiments()
        with suppress(FileExistsError):  # Another process was faster.
            os.link(new, file)


def _correct_paths(file: Path) -> None:
    here = file.parent / ARTIFACT_FOLDER
    if not here.exists():  # The user keeps the files elsewhere.
        return
    with closing(sqlite3.connect(file, timeout=SECONDS_TO_WAIT)) as connection, connection:
        found = connection.execute("SELECT artifact_location FROM experiments WHERE name = ?", [MLFLOW_EXPERIMENT]).fetchone()
        before = Path(found[0]).parent if found else here
        if before == here or before.name != ARTIFACT_FOLDER:
            return
        old, new = f"{before}/", f"{here}/"
        for table, column in _PATHS:
            moved = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
            connection.execute(moved, [new, len(old) + 1, len(old), old])
