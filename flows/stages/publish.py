"""Stage publish: the averaged model into MLflow's registry, as a version with an alias, as part of the run of its training.

This stage alone needs MLflow. `dvc repro` skips it while results/published.json is there, whatever the registry holds; the flow
(flows/pipeline.py) looks into the registry too.
"""

import csv
import os
import shutil
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Run
from mlflow.models.model import ModelInfo

import transformer_core
from flows.process.paths import AVERAGED, DECODED, METRICS, PUBLISHED, RAW, REPORT, TRAINING, VALIDATION_SCORE
from flows.process.runner import run_stage
from flows.record.journal import DESCRIPTION, JOURNALS, Journal, position_file
from flows.record.lineage import describe_training, training_name
from flows.record.registry import EVALUATION, HYPOTHESES, card, decide, register
from flows.record.sending import sync
from flows.record.server import connect, find_training, reaching, run_link
from flows.record.tasks import Task, task_of
from transformer_core.config import DEFAULT_TRACKING_URI, Params, tracking_uri
from transformer_core.errors import UserError
from transformer_core.evaluation.metrics import read_aligned
from transformer_core.files import read_json, sha256_of, write_json

SERVED_MODEL = Path(__file__).parents[1] / "record" / "served_model.py"
CONFIG = AVERAGED / "config.json"
MADE_BY = {
    RAW / "manifest.json": "download",
    AVERAGED / "config.json": "average",
    DECODED / HYPOTHESES: "decode",
    METRICS: "evaluate",
    REPORT: "evaluate",
}
MODEL = "translator"
EXAMPLE = ["A man is riding a bike."]
# What the served model imports; named here because MLflow, left to find out, loads the model in another process first.
REQUIRED = ("mlflow", "numpy", "pydantic", "ruamel.yaml", "safetensors", "sentencepiece", "torch")
UPLOAD_SECONDS = "120"


def run(params: Params) -> str:
    """Send what the journals hold, register the model, decide on its alias.

    Raises:
        UserError: exit code 69; MLflow is away. Scores and report exist all the same.
    """
    for path, stage in MADE_BY.items():
        if not path.exists():
            raise UserError(f"{path}: no such file", f"Make it with: dvc repro {stage}")
    figures, manifest, made_by = read_json(METRICS), read_json(RAW / "manifest.json"), read_json(AVERAGED / "config.json")["training"]
    hypotheses, references = read_aligned(DECODED / HYPOTHESES, RAW / f"test.{manifest['target']}")
    task, name, uri = task_of(manifest["target"]), params.publish.name, tracking_uri(params.machine)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", UPLOAD_SECONDS)
    with reaching(uri):
        sync(uri)
        client = connect(uri)
        training = training_run(client, uri, params, made_by["fingerprint"])
        log_scores(client, training, figures, task, made_by["updates"])
        model = log_model(client, uri, params, training, made_by["updates"])
        tags = version_tags(figures, task, training)
        version = register(client, name, model.model_uri, str(model.model_id), training.info.run_id, tags)
        decision = decide(client, uri, version, task, hypotheses, references)
        for key, value in decision.tags().items():
            client.set_model_version_tag(name, version.version, key, value)
        text = card(name, decision.alias, training_name(params), figures, manifest, decision.reason)
        client.update_model_version(name, version.version, text)
        client.set_registered_model_alias(name, decision.alias, version.version)
        finish_training(client, training, params, figures, task)
        link = run_link(client, uri, training.info.run_id)
    model_uri = f"models:/{name}@{decision.alias}"
    published = {"name": name, "version": str(version.version), "run_id": training.info.run_id, "model_uri": model_uri}
    write_json(PUBLISHED, {**published, **decision.tags()})
    print(_where(figures, task, uri, link))
    return f"{model_uri}: version {version.version}, {decision.reason}"


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
    describe_training(journal, params)
    journal.tags({"filled_from": tables.as_posix()})
    names = {VALIDATION_SCORE: task_of(params.download.target).key}
    for context, name, left_out in (("train", "updates.csv", set[str]()), ("valid", "validation.csv", {"seconds"})):
        with (tables / name).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                step = int(row.pop("update"))
                journal.metrics(step, {names.get(key, key): float(value) for key, value in row.items() if key not in left_out}, context)
    journal.end()


def log_model(client: MlflowClient, uri: str, params: Params, training: Run, updates: int) -> ModelInfo:
    """Log the model directory as a pyfunc in the training's run, which stays as it ended."""
    search = params.decode.model_dump(include={"beam", "alpha", "penalty", "max_extra"})
    mlflow.set_tracking_uri(uri)
    mlflow.start_run(run_id=training.info.run_id)
    try:
        with TemporaryDirectory() as temporary:
            # A copy, because DVC may keep links to its cache here (cache.type symlink), which MLflow refuses as a way out of the folder.
            directory = shutil.copytree(AVERAGED, Path(temporary) / AVERAGED.name)
            evaluation = Path(temporary) / EVALUATION
            evaluation.mkdir()
            shutil.copyfile(DECODED / HYPOTHESES, evaluation / HYPOTHESES)
            logged: ModelInfo = mlflow.pyfunc.log_model(
                name=MODEL,
                python_model=str(SERVED_MODEL),
                artifacts={"model": str(directory), "evaluation": str(evaluation)},
                code_paths=[str(Path(transformer_core.__file__).parent)],
                # With the types of `predict` the signature: lines in, lines out, and what a request may ask for, with its defaults.
                input_example=(EXAMPLE, {**search, "nbest": False, "scores": False}),
                pip_requirements=requirements(),
                step=updates,
            )
    finally:
        mlflow.end_run()
        client.set_terminated(training.info.run_id, training.info.status, training.info.end_time)
    return logged


def version_tags(figures: Mapping[str, Any], task: Task, training: Run) -> dict[str, str]:
    """Score and origin of a version; of equal `references` and `signature` two scores compare."""
    return {
        **{key: str(figures[key]) for key in (task.key, "corpus", "synthetic", "signature")},
        "references": figures["references_sha256"],
        "hypotheses": sha256_of(DECODED / HYPOTHESES),
        "fingerprint": training.data.tags["fingerprint"],
    }


def log_scores(client: MlflowClient, training: Run, figures: Mapping[str, Any], task: Task, updates: int) -> None:
    """Scores of the test set among the training's metrics; a model that is logged at the same step later takes them over."""
    scores = {f"test/{name}": figures[name] for name in task.published}
    now = time.time_ns() // 1_000_000
    new = [Metric(name, value, now, updates) for name, value in scores.items() if training.data.metrics.get(name) != value]
    client.log_batch(training.info.run_id, metrics=new)


def finish_training(client: MlflowClient, training: Run, params: Params, figures: Mapping[str, Any], task: Task) -> None:
    """Let the page of the training tell what came of it: by its name, its text, the report and the translations."""
    run_id, headline = training.info.run_id, task.headline(figures)
    client.update_run(run_id, name=f"{training_name(params)}, {headline}")
    begun = training.data.tags.get(DESCRIPTION, "").split("\n\n")[0]
    client.set_tag(run_id, DESCRIPTION, f"{begun}\n\n**{headline}** on {figures['lines']:,} lines of test ({figures['signature']}).")
    client.log_artifact(run_id, str(REPORT), EVALUATION)
    client.log_artifact(run_id, str(DECODED / HYPOTHESES), EVALUATION)


def requirements() -> list[str]:
    """The packages that the served model needs, as pip takes them, in the versions that made it."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED]


def _where(figures: dict[str, Any], task: Task, uri: str, link: str) -> str:
    synthetic = " (synthetic)" if figures["synthetic"] else ""
    store = "" if uri == DEFAULT_TRACKING_URI else f" --backend-store-uri {uri}"
    see = f"mlflow ui{store}, then {link}" if uri.startswith("sqlite:") else link
    return f"{task.headline(figures)} on the test set of {figures['corpus']}{synthetic}\nreport: {REPORT}\ntraining: {see}"


if __name__ == "__main__":
    raise SystemExit(run_stage("publish", run))
