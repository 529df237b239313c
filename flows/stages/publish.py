"""Stage publish: the averaged model becomes a version with an alias in MLflow's registry, in the run of its training.

This stage alone needs MLflow. `dvc repro` skips it while results/published.json exists, whatever the registry holds; the flow
(flows/pipeline.py) checks the registry too.
"""

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
from flows.process import paths
from flows.record.documents import MODEL_CONFIG, read_manifest, read_output
from flows.record.journal import BEFORE_RESULT, DESCRIPTION, FROM_TABLES, SCORES_STEP, Journal, journal_beside, journal_of, position_file
from flows.record.lineage import describe_training, training_description, training_name
from flows.record.registry import EVALUATION, address_of, card, decide, register, undecided
from flows.record.sending import sync
from flows.record.server import connect, find_training, reaching, run_link, ui_command
from flows.record.store import tracking_uri
from flows.record.tasks import read_scores
from transformer_core.config import MOST_EXTRA, PAPER_SEARCH, Decode, Params
from transformer_core.errors import UserError, writing
from transformer_core.evaluation.pages import with_verdict
from transformer_core.evaluation.scoring import Scoring, read_aligned, scoring_of
from transformer_core.files import DVC_EXPERIMENT, new_file, read_numbers, sha256_of, write_json
from transformer_core.tasks import Task

SERVED_MODEL = Path(__file__).parents[1] / "record" / "served_model.py"
LOGGED_NAME = "translator"
EXAMPLE = ["A man is riding a bike."]
# Packages that the served model imports; MLflow, left to find out, loads the model in another process first.
REQUIRED = ("ctranslate2", "mlflow", "numpy", "pydantic", "ruamel.yaml", "safetensors", "sentencepiece", "torch")


def run(params: Params) -> str:
    """Send the journals, register the model, and decide on its alias. The model of an experiment of DVC is not registered.

    Raises `UserError`: as `read_manifest`; 69, MLflow is unreachable. Scores and report exist all the same.
    """
    paths.require(paths.MANIFEST, MODEL_CONFIG, paths.DECODED / paths.HYPOTHESES, paths.SCORES, paths.REPORT, paths.SENTENCES)
    manifest, config = read_manifest(params), read_output(MODEL_CONFIG)
    made_by, settings = config["training"], PAPER_SEARCH if config.get("decode") is None else Decode(**config["decode"])
    task = params.download.task
    scoring, scores = scoring_of(task), read_scores(task)
    hypotheses, references, sources = read_aligned(
        paths.DECODED / paths.HYPOTHESES, *(paths.RAW / f"test.{manifest[side]}" for side in ("target", "source"))
    )
    name, uri = params.publish.name, tracking_uri(params.machine)
    with reaching(uri):
        client = connect(uri, transfers=True)
        sync(uri)
        training = training_run(client, uri, params, made_by["fingerprint"], made_by.get("run", ""))
        log_scores(client, training, scores, scoring)
        finish_training(client, training, params, manifest, scores, task)
        link = run_link(uri, training)
        if experiment := os.environ.get(DVC_EXPERIMENT):
            return _recorded(experiment, name, training, _summary(scores, task, uri, link))
        tags = version_tags(scores, task, training)
        version = undecided(client, name, training.info.run_id, tags)
        if version is None:
            model = log_model(client, uri, settings, training, made_by["updates"])
            score_model(client, training.info.run_id, str(model.model_id), scoring)
            version = register(client, name, model.model_uri, str(model.model_id), training.info.run_id, tags)
        decision = decide(client, version, scoring, sources, hypotheses, references)
        # For what is kept: the alias may later be that of another version.
        address, numbered = address_of(version, decision.alias), address_of(version, "")
        page = with_verdict(paths.REPORT.read_text(encoding="utf-8"), numbered, decision.alias, decision.reason)
        client.log_text(training.info.run_id, page, f"{EVALUATION}/{paths.REPORT.name}")
        client.update_model_version(name, version.version, card(numbered, decision, training_name(params), scores, manifest))
        if decision.alias:
            client.set_registered_model_alias(name, decision.alias, version.version)
        published = {"name": name, "version": str(version.version), "run_id": training.info.run_id, "model_uri": f"models:/{numbered}"}
        write_json(paths.PUBLISHED, {**published, **decision.tags()})
        for key, value in decision.tags().items():  # At the end: `undecided` finds a version without them.
            client.set_model_version_tag(name, version.version, key, value)
    print(_summary(scores, task, uri, link))
    return f"models:/{address}: version {version.version}{'' if decision.alias else ', no alias'}, {decision.reason}"


def _recorded(experiment: str, name: str, training: Run, summary: str) -> str:
    """Write the output of the stage for an experiment, whose model is not registered; return the closing line."""
    write_json(paths.PUBLISHED, {"name": name, "experiment": experiment, "run_id": training.info.run_id})
    print(summary)
    remedy = f"dvc exp apply {experiment} && dvc repro --force --single-item publish"
    return f"experiment {experiment} is in MLflow, its model is not in the registry. To register it: {remedy}"


def training_run(client: MlflowClient, uri: str, params: Params, fingerprint: str, identity: str = "") -> Run:
    """The run of the model's training.

    It is sent again if MLflow has lost it, and made from its CSV files if there is no journal because DVC took the training from its cache.
    """
    found = find_training(client, fingerprint, identity)
    if found is None or "journal" not in found.data.tags:
        journal = journal_of(fingerprint, identity)
        if journal:
            position_file(journal).unlink(missing_ok=True)
        else:
            journal_from_tables(fingerprint, params, identity)
        sync(uri)
        found = find_training(client, fingerprint, identity)
    if found is None:
        raise UserError(f"MLflow at {uri}: the run of training {fingerprint[:12]} was deleted", "Restore it there, or train again.")
    return found


def journal_from_tables(fingerprint: str, params: Params, identity: str) -> None:
    """Write the journal of a training that ran elsewhere, from its CSV files; its times are those of now.

    All of it or nothing: half a journal, of a publish that was killed, would be sent and count as the whole.
    """
    path = journal_beside(fingerprint, identity)
    position_file(path).unlink(missing_ok=True)  # Of an earlier journal of this name and id, which was removed without it.
    with new_file(path) as unfinished:
        journal = Journal(fingerprint, identity=identity + FROM_TABLES if identity else None, path=unfinished)
        describe_training(journal, params)
        journal.tags({"filled_from": paths.UPDATES.parent.as_posix()})
        for context, path in (("train", paths.UPDATES), ("valid", paths.VALIDATION)):
            for row in read_numbers(path):
                if context == "valid":
                    del row["seconds"]
                    row[params.download.task.key] = row.pop(paths.VALIDATION_SCORE)
                journal.metrics(int(row.pop("update")), row, context)
        journal.end()


def log_model(client: MlflowClient, uri: str, settings: Decode, training: Run, updates: int) -> ModelInfo:
    """Log the model directory, whose search is `settings`, as a pyfunc in the training's run.

    The end of the run is kept, also after a publish that was killed here.
    """
    search = settings.model_dump(include={"beam", "alpha", "penalty", "max_extra", "engine", "shortlist"})
    search["max_extra"] = min(search["max_extra"], MOST_EXTRA)  # The server would refuse every request that does not set it.
    mlflow.set_tracking_uri(uri)
    mlflow.start_run(run_id=training.info.run_id)
    try:
        with TemporaryDirectory() as temporary, writing(temporary):
            # A copy: the files may be links into DVC's cache (cache.type symlink), which MLflow refuses because they leave the folder.
            directory = shutil.copytree(paths.AVERAGED, Path(temporary) / paths.AVERAGED.name)
            evaluation = Path(temporary) / EVALUATION
            evaluation.mkdir()
            shutil.copyfile(paths.DECODED / paths.HYPOTHESES, evaluation / paths.HYPOTHESES)
            logged: ModelInfo = mlflow.pyfunc.log_model(
                name=LOGGED_NAME,
                python_model=str(SERVED_MODEL),
                artifacts={"model": str(directory), "evaluation": str(evaluation)},
                code_paths=[str(Path(transformer_core.__file__).parent)],
                # The signature, with the types of `predict`: lines in, lines out, and the parameters of a request with their defaults.
                input_example=(EXAMPLE, {**search, "nbest": False, "scores": False}),
                pip_requirements=requirements(),
                step=updates,
            )
    finally:
        mlflow.end_run()
        status = "FINISHED" if training.info.status == "RUNNING" else training.info.status
        client.set_terminated(training.info.run_id, status, training.info.end_time)
    return logged


def version_tags(scores: Mapping[str, Any], task: Task, training: Run) -> dict[str, str]:
    """Score and origin of a version; two scores are comparable if `references` and `signature` are equal."""
    return {
        **{key: str(scores[key]) for key in (task.key, "corpus", "signature")},
        "references": scores["references_sha256"],
        "hypotheses": sha256_of(paths.DECODED / paths.HYPOTHESES),
        "fingerprint": training.data.tags["fingerprint"],
    }


def log_scores(client: MlflowClient, training: Run, scores: Mapping[str, Any], scoring: Scoring) -> None:
    """Log scores of the test set as metrics of the training."""
    now = time.time_ns() // 1_000_000
    keys = [score.key for score in scoring.scores]
    changed = [name for name in keys if name in scores and training.data.metrics.get(name) != scores[name]]
    client.log_batch(training.info.run_id, metrics=[Metric(name, scores[name], now, SCORES_STEP) for name in changed])


def score_model(client: MlflowClient, run_id: str, model_id: str, scoring: Scoring) -> None:
    """Give a logged model the run's scores of the test set; MLflow gives it only the metrics of its own step, the last update."""
    last = [history[-1] for score in scoring.scores if (history := client.get_metric_history(run_id, score.key))]
    of_model = [Metric(score.key, score.value, score.timestamp, score.step, model_id=model_id, run_id=run_id) for score in last]
    client.log_batch(run_id, metrics=of_model)


def finish_training(
    client: MlflowClient, training: Run, params: Params, manifest: Mapping[str, Any], scores: Mapping[str, Any], task: Task
) -> None:
    """Add the result to the page of the training: to its name and text, and as report and outputs."""
    run_id, headline = training.info.run_id, task.headline(scores)
    client.update_run(run_id, name=f"{task.run_name(scores)}, {training_name(params)}")
    result = f"{BEFORE_RESULT}**{headline}** on {scores['lines']:,} lines of test ({scores['signature']})."
    client.set_tag(run_id, DESCRIPTION, f"{training_description(params, manifest)}{result}")
    for path in (paths.REPORT, paths.SENTENCES, paths.DECODED / paths.HYPOTHESES):
        client.log_artifact(run_id, str(path), EVALUATION)


def requirements() -> list[str]:
    """The packages of the served model as pip takes them, in their versions here."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED]


def _summary(scores: dict[str, Any], task: Task, uri: str, link: str) -> str:
    command = ui_command(uri)
    see = f"{command}, then {link}" if command else link
    return f"{task.headline(scores)} on the test set of {scores['corpus']}\nreport: {paths.REPORT}\ntraining: {see}"
