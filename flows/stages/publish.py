"""Stage publish: the averaged model becomes a version with an alias in MLflow's registry, in the run of its training.

This stage alone needs MLflow. `dvc repro` skips it while results/published.json exists, whatever the registry holds.
"""

import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.models.model import ModelInfo

import transformer_core
from flows.process import paths
from flows.record.alarms import alarm
from flows.record.costs import Costs, costs, seconds_of
from flows.record.documents import MODEL_CONFIG, read_manifest, read_scores
from flows.record.lineage import record_from_tables, training_name
from flows.record.registry import CHAMPION, EVALUATION, MAIN_TEST, Decision, card, decide, decision_of, register, registered_before, tag_of
from flows.record.run import FINGERPRINT, NAME, SCORES_STEP, RunRecord, identity_of, read_record
from flows.record.sending import Sender, send_others
from flows.record.server import reaching, run_link, tracking_uri, ui_command
from transformer_core.config import COMET, MOST_EXTRA, PAPER_SEARCH, Decode, Machine, Params
from transformer_core.errors import writing
from transformer_core.evaluation.bleu import tokenizer_for, tokenizer_in
from transformer_core.evaluation.neural import with_comet
from transformer_core.evaluation.scoring import Scoring, read_aligned, scoring_of
from transformer_core.files import DVC_EXPERIMENT, sha256_of, write_json
from transformer_core.tasks import TARGETS, Task

SERVED_MODEL = Path(__file__).parents[1] / "record" / "served_model.py"
ASKED = {"nbest": False, "scores": False, "glossary": ""}  # What a request can ask for beside a search.
# Over the model that the training started from, as +3.10 (+2.51 to +3.70, p = 0.0001) over 40.12.
GAIN = "{gain:+.2f} ({low:+.2f} to {high:+.2f}, p = {p_value:.4f}) over {before:.2f}"
# Packages that the served model imports; MLflow, left to find out, loads the model in another process first.
REQUIRED = ("ctranslate2", "mlflow", "numpy", "pydantic", "ruamel.yaml", "safetensors", "sentencepiece", "sentencex", "torch")


def run(params: Params) -> str:
    """Send the records, register the model, and decide on its alias. The model of an experiment of DVC is not registered, nor an ensemble.

    A publish that was killed, or that runs again, finishes the version that it has registered.

    Raises `UserError`: as `read_manifest`; 69, MLflow is unreachable; 78, it refuses. Scores and report exist all the same.
    """
    from transformer_core.models.directory import read_config  # Here: no code of models decides what is published.

    paths.require(paths.MANIFEST, MODEL_CONFIG, paths.DECODED / paths.HYPOTHESES, paths.SCORES, paths.REPORT, paths.SENTENCES)
    manifest, config = read_manifest(params), read_config(MODEL_CONFIG, paths.rerun_remedy(MODEL_CONFIG))
    task, trained = params.download.task, config.training.model_dump()
    scores = read_scores(task)
    scoring = scoring_of(task, tokenizer_in(scores["signature"]))
    raw = (paths.RAW / f"test.{manifest[side]}" for side in ("source", "target"))
    hypotheses, sources, references = read_aligned(paths.DECODED / paths.HYPOTHESES, *raw)
    name, uri = params.publish.name, tracking_uri(params.machine)
    record = read_record(identity_of(trained)) or record_from_tables(params, trained)
    before = [name for name in paths.stages() if name != "publish"]
    add_result(record, params, scores, scoring, costs(seconds_of(before, params, trained["seconds"]), params))
    with reaching(uri):
        sender = Sender(uri)
        client, training = sender.client, sender.send(record)
        send_others(uri)
        link, command = run_link(uri, training), ui_command(uri)
        see = f"{command}, then {link}" if command else link
        summary = f"{task.headline(scores)} on the test set of {scores['corpus']}\nreport: {paths.REPORT}\ntraining: {see}"
        if experiment := os.environ.get(DVC_EXPERIMENT):
            write_json(paths.PUBLISHED, {"name": name, "experiment": experiment, "run_id": training.info.run_id})
            print(summary)
            remedy = f"dvc exp apply {experiment} && dvc repro --force --single-item publish"
            return f"experiment {experiment} is in MLflow, its model is not in the registry. To register it: {remedy}"
        if params.decode.ensemble:
            write_json(paths.PUBLISHED, {"name": name, "run_id": training.info.run_id})
            print(summary)
            return "the scores are those of several models together, so none of them is registered"
        tags, search = version_tags(scores, task, record.tags[FINGERPRINT], params.download.target), config.decode or PAPER_SEARCH
        version = registered_before(client, name, training.info.run_id, tags)
        if version is None:
            model = logged_before(client, training, tags) or log_model(uri, search, training, trained["updates"], tags, config.target)
            sender.send(record)  # The end of the run, which the model's upload has changed.
            version = register(client, name, f"models:/{model.model_id}", str(model.model_id), training.info.run_id, tags)
        decided = decision_of(version)  # Of an earlier publish: since then the alias may have moved on.
        comet = params.evaluate.comet if params.publish.by == COMET else None
        with with_comet(scoring, comet, "evaluate.comet", lambda _: sources) as asked:
            decision = decided or decide(client, version, asked, hypotheses, references, COMET if comet else task.key, MAIN_TEST)
        numbered = f"{name}/{version.version}"  # For what is kept: the alias may later be that of another version.
        address = f"{name}@{decision.alias}" if decision.alias else numbered
        if decided is None:
            client.update_model_version(name, version.version, card(numbered, decision, training_name(params), scores, manifest))
            settle(client, version, MAIN_TEST, decision, float(scores[task.key]), params.machine, link)
        for split, of_split in scores.get("tests", {}).items() if decided is None else ():
            of_set = paths.RAW / f"{split}.{manifest['target']}"
            outputs, expected = read_aligned(paths.DECODED / f"{split}.hyp", of_set)
            own = scoring_of(task, params.evaluate.tokenize or tokenizer_for(of_set, scores["signature"]))
            further = decide(client, version, own, outputs, expected, task.key, split)
            settle(client, version, split, further, float(of_split[task.key]), params.machine, link)
            for key, value in further.tags(split).items():
                client.set_model_version_tag(name, version.version, key, value)
        published = {"name": name, "version": str(version.version), "run_id": training.info.run_id, "model_uri": f"models:/{numbered}"}
        write_json(paths.PUBLISHED, {**published, **decision.tags()})
        for key, value in reversed(decision.tags().items()):  # The decision itself last.
            client.set_model_version_tag(name, version.version, key, value)
    print(summary)
    return f"models:/{address}: version {version.version}{'' if decision.alias else ', no alias'}, {decision.reason}"


def settle(client: MlflowClient, version: ModelVersion, split: str, decision: Decision, score: float, machine: Machine, link: str) -> None:
    """Give a new version its alias of a test set, and send alarms of a champion that changed, of a worse version and of a low score."""
    name, number, alias = version.name, str(version.version), decision.alias
    before = str(client.get_registered_model(name).aliases.get(alias, number))
    if alias:
        client.set_registered_model_alias(name, alias, number)
    found = []
    if before != number and alias.startswith(CHAMPION):
        remedy = f"To keep version {before}, set the alias {alias} to it in MLflow."
        found.append(("champion", f"{name}/{number} is {alias} in place of version {before}: {decision.reason}", remedy))
    if decision.rival and not alias:
        remedy = "Compare their runs before it is used: python -m flows.compare"
        found.append(("worse", f"{name}/{number} on {split}: {decision.reason}", remedy))
    if machine.alarm_score is not None and score < machine.alarm_score:
        fault = f"{name}/{number}: {score:.2f} on {split} is below machine.alarm_score, {machine.alarm_score:g}"
        found.append(("score", fault, f"Look at the examples in {paths.REPORT}."))
    for cause, fault, remedy in found:
        alarm(machine, f"{name}-{number}-{split}", cause, fault, remedy, link)


def add_result(record: RunRecord, params: Params, scores: Mapping[str, Any], scoring: Scoring, spent: Costs) -> None:
    """Add the result and what it cost to the record of the training: to its name, as metrics, and as report and outputs."""
    record.tags[NAME] = f"{scoring.task.run_name(scores)}, {training_name(params)}"
    keys = (*(score.key for score in scoring.scores), COMET)
    record.measure(SCORES_STEP, {key: scores[key] for key in keys if key in scores})
    for kind, of_stage in spent.items():
        record.measure(SCORES_STEP, of_stage, context=kind)
    record.attach_files([paths.REPORT, paths.SENTENCES, paths.DECODED / paths.HYPOTHESES], EVALUATION)
    record.write()


def logged_before(client: MlflowClient, training: Run, tags: Mapping[str, str]) -> LoggedModel | None:
    """Return the model that a publish has logged whole with these tags and, because it was killed, not registered."""
    models = client.search_logged_models([training.info.experiment_id], f"source_run_id = '{training.info.run_id}'")
    return next((model for model in models if model.status == "READY" and model.tags.items() >= tags.items()), None)


def log_model(uri: str, settings: Decode, training: Run, updates: int, tags: Mapping[str, str], target: str) -> ModelInfo:
    """Log the model directory, whose search is `settings`, as a pyfunc in the training's run, which the sender then ends again."""
    search = settings.model_dump(include={"beam", "alpha", "penalty", "max_extra", "engine", "shortlist"})
    search["max_extra"] = min(search["max_extra"], MOST_EXTRA)  # The server would refuse every request that does not set it.
    mlflow.set_tracking_uri(uri)
    with mlflow.start_run(run_id=training.info.run_id), TemporaryDirectory() as temporary, writing(temporary):
        # A copy: the files may be links into DVC's cache (cache.type symlink), which MLflow refuses because they leave the folder.
        directory = shutil.copytree(paths.AVERAGED, Path(temporary) / paths.AVERAGED.name)
        evaluation = Path(temporary) / EVALUATION
        evaluation.mkdir()
        for file in paths.DECODED.glob("test*.hyp"):  # Of the main test set, and of the further ones.
            shutil.copyfile(file, evaluation / file.name)
        logged: ModelInfo = mlflow.pyfunc.log_model(
            name="translator",
            python_model=str(SERVED_MODEL),
            artifacts={"model": str(directory), "evaluation": str(evaluation)},
            code_paths=[str(packed(Path(temporary)))],
            # The signature, with the types of `predict`: lines in, lines out, and the parameters of a request with their defaults.
            input_example=(["A man is riding a bike."], {**search, **ASKED, **({"to": ""} if target == TARGETS else {})}),
            pip_requirements=requirements(),
            step=updates,
            tags=dict(tags),
        )
    return logged


def packed(folder: Path) -> Path:
    """Write the package of the models as two files into `folder`: MLflow uploads a file at a time, and the package has more than 150."""
    source = Path(transformer_core.__file__).parent
    package = folder / source.name
    package.mkdir()
    with ZipFile(package / "modules.zip", "w") as archive:
        for file in sorted(file for file in source.rglob("*") if file.is_file() and file.suffix != ".pyc"):
            archive.write(file, file.relative_to(source))
    (package / "__init__.py").write_text("__path__ = [__file__.removesuffix('__init__.py') + 'modules.zip']\n", encoding="utf-8")
    return package


def version_tags(scores: Mapping[str, Any], task: Task, fingerprint: str, target: str) -> dict[str, str]:
    """Score and origin of a version; two scores are comparable if `references` and `signature` are equal. `target` is the language."""
    tags = {key: str(scores[key]) for key in ("corpus", "signature", COMET, f"{COMET}_signature") if key in scores}
    for split, of_split in {MAIN_TEST: scores, **scores.get("tests", {})}.items():
        raw, outputs = paths.RAW / f"{split}.{target}", paths.DECODED / f"{split}.hyp"
        values = {key: str(of_split[key]) for key in (task.key, COMET) if key in of_split}
        values |= {"references": sha256_of(raw), "hypotheses": sha256_of(outputs)}
        tags |= {tag_of(key, split): value for key, value in values.items()}
    gains = {tag_of("gain", split): GAIN.format(**gain) for split, gain in scores.get("gains", {}).items()}
    return {**tags, **gains, "fingerprint": fingerprint}


def requirements() -> list[str]:
    """The packages of the served model as pip takes them, in their versions here."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in REQUIRED]
