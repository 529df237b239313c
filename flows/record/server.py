"""MLflow's record: its address, a client with short timeouts, the project's experiment, and the runs in it.

Without a server it is the SQLite database mlflow.db, and beside it mlruns with the files of runs and models.
"""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from transformer_core.config import Machine
from transformer_core.errors import ExitCode, UserError, configuration_error, disk_error, first_line, without_logins
from transformer_core.files import repository

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

# Before the path of a record in an SQLite database.
SQLITE = "sqlite:///"
MLFLOW_EXPERIMENT = "transformer-pipeline"
ARTIFACT_FOLDER = "mlruns"
_SERVERS = ("http://", "https://")
# Errors that a retry would meet again: a value that MLflow cannot store, a wrong password, a missing permission.
REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "UNAUTHENTICATED", "PERMISSION_DENIED")
PARENT_TAG = "mlflow.parentRunId"
RECORD = "record"  # Tag of a run: the id of its record.
# Time limit of the first call, which is not repeated. With the limits and repetitions of later calls it would wait for six minutes.
ANSWER_SECONDS = 10
SETTINGS = {
    # With MLflow's defaults, a call to an unavailable server takes longer still. One that transfers a file may be silent for two minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "120",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # MLflow would print links with the password of its address; ours has none.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def tracking_uri(machine: Machine) -> str:
    """Return the address of MLflow's record: `machine.tracking_uri`, else $MLFLOW_TRACKING_URI, else mlflow.db, as MLflow itself has it.

    The relative path of a database begins at the repository, also in an experiment's temporary copy of it.
    """
    uri = machine.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}mlflow.db"
    return f"{SQLITE}{repository() / uri.removeprefix(SQLITE)}" if uri.startswith(SQLITE) else uri


def database(uri: str) -> Path | None:
    """Return the absolute path of an SQLite database; None for an address of another kind."""
    return (repository() / uri.removeprefix(SQLITE)).resolve() if uri.startswith(SQLITE) else None


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


def connect(uri: str) -> "MlflowClient":
    """Return a client of a server that has answered in time, or of a database, created if missing. Raises MlflowException: no answer."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient  # Imported here because it takes 1.4 seconds, which a stage with nothing to send saves.

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # It logs the traceback of an error that it also raises.
    if (file := database(uri)) is not None and not file.exists():
        create(file)
    if uri.startswith(_SERVERS):
        from mlflow.utils.credentials import get_default_host_creds
        from mlflow.utils.rest_utils import http_request

        # Any answer will do: a gateway may have no such page, or ask for a login that the later calls report.
        credentials = get_default_host_creds(uri)  # type: ignore[no-untyped-call]
        http_request(credentials, "/health", "GET", max_retries=0, timeout=ANSWER_SECONDS, raise_on_status=False)  # type: ignore[no-untyped-call]
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextmanager
def reaching(uri: str) -> Iterator[None]:
    """Convert errors of MLflow, its database or the network to `UserError`: 78, MLflow refuses a value or the login; 69, it is away."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        if isinstance(error, OSError) and disk_error(error):
            raise  # Of this machine, not of MLflow.
        status = getattr(getattr(error, "response", None), "status_code", None)  # Of an upload to the store of artifacts.
        if status in (401, 403) or (isinstance(error, MlflowException) and error.error_code in REFUSED):
            raise configuration_error(f"MLflow at {uri} refuses: {first_line(error)}") from error
        remedy = "Start it, or correct machine.tracking_uri, and run again; nothing is lost."
        raise UserError(f"MLflow at {uri} is unreachable: {first_line(error)}", remedy, ExitCode.UNAVAILABLE) from error


def run_link(uri: str, run: "Run") -> str:
    """Return the address of a run's page, without a login: on the server, or in what `ui_command` starts for a database in a file.

    Without the last part MLflow shows its pages for language models, which have no charts of a training.
    """
    server = without_logins(uri).rstrip("/") if uri.startswith(_SERVERS) else "http://127.0.0.1:5000"
    return f"{server}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}?workflowType=machine_learning"


def ui_command(uri: str) -> str:
    """Return the command that shows a database in a file on a page; empty for a server, which needs none."""
    return f"mlflow ui --backend-store-uri {without_logins(uri)}" if uri.startswith("sqlite:") else ""


def experiment_id(client: "MlflowClient") -> str:
    """Return the id of the project's experiment, created if there is none. Raises `UserError` (69): it cannot be created."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(MLFLOW_EXPERIMENT)
    if found is None:
        file = database(client.tracking_uri)
        folder = str(file.parent / ARTIFACT_FOLDER / MLFLOW_EXPERIMENT) if file else None  # None leaves it to the server.
        with suppress(MlflowException):  # Another process may have been faster.
            client.create_experiment(MLFLOW_EXPERIMENT, folder)
        found = client.get_experiment_by_name(MLFLOW_EXPERIMENT)
    if found is None:
        fault = f"MLflow: the experiment {MLFLOW_EXPERIMENT} could not be created"
        raise UserError(fault, "Was it deleted? Restore it.", ExitCode.UNAVAILABLE)
    return str(found.experiment_id)


def search(client: "MlflowClient", wanted: str, experiment: str = "") -> "list[Run]":
    """Return the runs of an experiment, or else of the project's, that a filter selects, the latest first."""
    page_of = partial(client.search_runs, [experiment or experiment_id(client)], wanted, order_by=["attributes.start_time DESC"])
    pages = [page_of()]
    while token := pages[-1].token:  # A page has at most 1,000 runs.
        pages.append(page_of(page_token=token))
    return [run for page in pages for run in page]
