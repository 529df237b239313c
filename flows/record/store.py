"""Where MLflow's record is. Without a server: the SQLite database mlflow.db, and beside it mlruns with the files of runs and models."""

import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_core.config import Machine
from transformer_core.files import repository

# Before the path of a record in an SQLite database.
SQLITE = "sqlite:///"
MLFLOW_EXPERIMENT = "transformer-pipeline"
ARTIFACT_FOLDER = "mlruns"


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


def create(file: Path) -> None:
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
