"""Stage publish: the averaged model into MLflow's registry, under a name and an alias, as part of the run of its training.

This stage alone needs MLflow. `dvc repro` skips it while results/published.json is there, whatever the registry holds; the flow
(flows/pipeline.py) looks into the registry too.
"""

import csv
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models.model import ModelInfo

import transformer_core
from flows.journal import JOURNALS, Journal, position_file
from flows.paths import AVERAGED, METRICS, PUBLISHED, REPORT, TRAINING
from flows.runner import run_stage
from flows.tracking import connect, find_training, reaching, run_link, sync
from transformer_core.config import DEFAULT_TRACKING_URI, Params, tracking_uri
from transformer_core.errors import UserError
from transformer_core.files import read_json, write_json

SERVED_MODEL = Path(__file__).parents[1] / "served_model.py"
CONFIG = AVERAGED / "config.json"
MADE_BY = {CONFIG: "average", METRICS: "evaluate"}
MODEL = "translator"
EXAMPLE = ["A man is riding a bike."]
# What the served model imports; named here because MLflow, left to find out, loads the model in another process first.
REQUIRED = ("mlflow", "numpy", "pydantic", "ruamel.yaml", "safetensors", "sentencepiece", "torch")
UPLOAD_SECONDS = "120"


def run(params: Params) -> str:
    """Send what the journals hold, register the model, give it the alias.

    Raises:
        UserError: exit code 69; MLflow is away. BLEU and report exist all the same.
    """
    for path, stage in MADE_BY.items():
        if not path.exists():
            raise UserError(f"{path}: no such file", f"Make it with: dvc repro {stage}")
    figures, made_by = read_json(METRICS), read_json(CONFIG)["training"]
    uri = tracking_uri(params.machine)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", UPLOAD_SECONDS)
    with reaching(uri):
        sync(uri)
        client = connect(uri)
        training = training_run(client, uri, params, made_by["fingerprint"])
        source = log_model(client, uri, params, training, made_by["updates"])
        registered = register(client, params.publish.name, source, training, figures)
        client.set_registered_model_alias(registered.name, params.publish.alias, registered.version)
        link = run_link(client, uri, training.info.run_id)
    model_uri = f"models:/{registered.name}@{params.publish.alias}"
    write_json(
        PUBLISHED,
        {
            "name": registered.name,
            "version": str(registered.version),
            "alias": params.publish.alias,
            "run_id": training.info.run_id,
            "model_uri": model_uri,
        },
    )
    print(_where(figures, uri, link))
    return f"{model_uri}: version {registered.version}"


def training_run(client: MlflowClient, uri: str, params: Params, fingerprint: str) -> Run:
    """The run of the training that the model comes from; sent again where MLflow has lost it, made from its CSV files where DVC took
    the training from its cache and there never was a journal here.
    """
    found = find_training(client, fingerprint)
    if found is None or "journal" not in found.data.tags:
        journal = JOURNALS / f"{fingerprint}.jsonl"
        if journal.exists():
            position_file(journal).unlink(missing_ok=True)
        else:
            journal_from_tables(fingerprint, params, TRAINING)
        sync(uri)
        found = find_training(client, fingerprint)
    if found is None:
        raise UserError(f"MLflow at {uri}: the run of training {fingerprint[:12]} was deleted", "Restore it there, or train again.")
    return found


def journal_from_tables(fingerprint: str, params: Params, tables: Path) -> None:
    """Write the journal of a training that ran elsewhere, from the CSV files it left; its times are those of now."""
    journal = Journal(fingerprint)
    journal.parameters(params.model_dump(exclude={"machine"}, exclude_none=True))
    journal.tags({"filled_from": tables.as_posix()})
    for context, name, left_out in (("train", "updates.csv", set[str]()), ("valid", "validation.csv", {"seconds"})):
        with (tables / name).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                step = int(row.pop("update"))
                journal.metrics(step, {key: float(value) for key, value in row.items() if key not in left_out}, context)
    journal.end()


def log_model(client: MlflowClient, uri: str, params: Params, training: Run, updates: int) -> ModelInfo:
    """Log the model directory as a pyfunc in the training's run, which stays as it ended."""
    mlflow.set_tracking_uri(uri)
    mlflow.start_run(run_id=training.info.run_id)
    try:
        with TemporaryDirectory() as temporary:
            # A copy, because DVC may keep links to its cache here (cache.type symlink), which MLflow refuses as a way out of the folder.
            directory = shutil.copytree(AVERAGED, Path(temporary) / AVERAGED.name)
            logged: ModelInfo = mlflow.pyfunc.log_model(
                name=MODEL,
                python_model=str(SERVED_MODEL),
                artifacts={"model": str(directory)},
                code_paths=[str(Path(transformer_core.__file__).parent)],
                # With the types of `predict` the signature: lines in, lines out, and what a request may ask for, with its defaults.
                input_example=(EXAMPLE, {"beam": params.decode.beam, "alpha": params.decode.alpha}),
                pip_requirements=requirements(),
                step=updates,
            )
    finally:
        mlflow.end_run()
        client.set_terminated(training.info.run_id, training.info.status, training.info.end_time)
    return logged


def register(client: MlflowClient, name: str, model: ModelInfo, training: Run, figures: dict[str, Any]) -> ModelVersion:
    """Make a logged model a new version in the registry, with its score as tags."""
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    tags = {key: str(figures[key]) for key in ("bleu", "corpus", "synthetic")}
    return client.create_model_version(name, model.model_uri, training.info.run_id, tags, model_id=model.model_id)


def requirements() -> list[str]:
    """The packages that the served model needs, as pip takes them, in the versions that made it."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED]


def _where(figures: dict[str, Any], uri: str, link: str) -> str:
    synthetic = " (synthetic)" if figures["synthetic"] else ""
    store = "" if uri == DEFAULT_TRACKING_URI else f" --backend-store-uri {uri}"
    see = f"mlflow ui{store}, then {link}" if uri.startswith("sqlite:") else link
    return f"BLEU {figures['bleu']:.2f} on the test set of {figures['corpus']}{synthetic}\nreport: {REPORT}\ntraining: {see}"


if __name__ == "__main__":
    raise SystemExit(run_stage("publish", run))
