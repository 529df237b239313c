"""The origin of a run: commit, dvc.lock, versions, the flow run that started it, and the datasets that it reads."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flows.process.child import git
from flows.process.paths import DVC_LOCK, MANIFEST, TRAINING, UPDATES, VALIDATION, sections_up_to
from flows.record.documents import read_output
from flows.record.run import COMMIT, DESCRIPTION, FINGERPRINT, NAME, RUN_FILE, SOURCE, Dataset, RunRecord, flatten, identity_of, now_ms
from transformer_core.config import PRETRAINED, Params
from transformer_core.errors import UserError
from transformer_core.files import DVC_EXPERIMENT, new_directory, read_numbers, sha256_of, write_json

PACKAGES = ("torch", "sentencepiece", "sacrebleu")
CONTEXTS = {"train": "training", "valid": "validation"}
# The flow sets these for the stages that it starts.
FLOW_RUN_ID, FLOW_RUN_NAME = "TRANSFORMER_FLOW_RUN_ID", "TRANSFORMER_FLOW_RUN_NAME"
# Variables of Slurm that a run has as tags of their names in lower case: job, account and nodes.
_OF_SLURM = ("SLURM_JOB_ID", "SLURM_JOB_ACCOUNT", "SLURM_JOB_NODELIST")
_DIGEST_LENGTH = 16


def lineage() -> dict[str, str]:
    """Return tags of the code and data of a run, without those that are unknown: the commit outside git, the job outside Slurm."""
    commit, differs = git_state()
    tags = {
        COMMIT: commit,
        SOURCE: "transformer-pipeline",
        "git_commit": commit,
        "git_dirty": str(differs).lower() if commit else "",
        "dvc_lock": sha256_of(DVC_LOCK) if DVC_LOCK.exists() else "",
        "prefect_flow_run_id": os.environ.get(FLOW_RUN_ID, ""),
        "prefect_flow_run": os.environ.get(FLOW_RUN_NAME, ""),
        "dvc_experiment": os.environ.get(DVC_EXPERIMENT, ""),
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        **{variable.lower(): os.environ.get(variable, "") for variable in _OF_SLURM},
    }
    return {name: value for name, value in tags.items() if value}


def describe_training(record: RunRecord, params: Params) -> None:
    """Set the settings, datasets, name and description of a training; no datasets without a manifest (`read_manifest`)."""
    manifest = read_output(MANIFEST) if MANIFEST.exists() else {}
    # Without the sections that decide the scores of a trained model: an evaluation records them, and a training may have several.
    record.parameters = flatten(params.model_dump(include={*sections_up_to("train")}, exclude_none=True))
    record.inputs = datasets(manifest, "train", "valid") if manifest else []
    record.tags |= {NAME: training_name(params), DESCRIPTION: training_description(params, manifest)}


def record_from_tables(params: Params, training: Mapping[str, Any]) -> RunRecord:
    """Write the record of a training that DVC took from its cache, from its CSV files, as if it had ended now, and return it.

    `training` is the key of this name in its model's config.json.
    """
    end_ms = now_ms()
    seconds = max((row["seconds"] for row in read_numbers(UPDATES)), default=0.0)
    record = RunRecord(id=identity_of(training), start_ms=end_ms - round(1000 * seconds), end_ms=end_ms, status="FINISHED")
    record.score = params.download.task.key
    describe_training(record, params)
    record.tags |= {FINGERPRINT: training["fingerprint"], "filled_from": TRAINING.as_posix()}
    with new_directory(record.folder) as folder:
        for table in (UPDATES, VALIDATION):
            shutil.copyfile(table, folder / table.name)
        write_json(folder / RUN_FILE, record.model_dump())
    return record


def training_name(params: Params) -> str:
    """Return the readable name of a training: multi30k en-de small, seed 1."""
    model, data = params.model, params.download
    kind = [] if model.architecture == "transformer" else [model.architecture]
    return f"{' '.join([data.corpus, f'{data.source}-{data.target}', *kind, model.preset])}, seed {params.train.seed}"


def training_description(params: Params, manifest: Mapping[str, Any]) -> str:
    """Return a paragraph in markdown on a training: model, data, length, parent. Without a manifest, of the data only the name is known."""
    model, settings, wanted, data = params.model, params.train, params.download, f"**{params.download.corpus}**"
    if manifest:
        data += f": {manifest['splits']['train']['pairs']:,} sentence pairs before cleaning"
    parent = "" if settings.init_from is None else f"It started from the weights of `{PRETRAINED / settings.init_from}`. "
    return (
        f"A {model.architecture} of preset *{model.preset}*, trained from {wanted.source} to {wanted.target} on {data}, "
        f"at most {settings.updates:,} updates of {settings.tokens_per_update:,} tokens. {parent}Its child runs are its evaluations."
    )


def git_state() -> tuple[str, bool]:
    """Return the commit of the working tree, and whether tracked files differ from it; ("", False) outside git.

    dvc.lock does not count: the run itself writes it, and its sum is a tag of its own.
    """
    try:
        commit = git(Path(), "describe", "--always", "--abbrev=12", "--exclude=*")
        return commit, bool(git(Path(), "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{DVC_LOCK}"))
    except (OSError, UserError, subprocess.CalledProcessError):
        return "", False


def datasets(manifest: Mapping[str, Any], *splits: str) -> list[Dataset]:
    """Return splits (test sets, too) in data/raw/manifest.json as data that a run has read.

    Each has a name, a digest of both sides, its origin as JSON, the number of sentence pairs, and its use (training, validation, test). Two
    with the same name and digest are the same data.
    """
    source, target = manifest["source"], manifest["target"]
    found = []
    for split in splits:
        described = manifest["splits"][split]
        sums = " ".join(described["files"][language]["sha256"] for language in (source, target))
        origin = [part for part in manifest["origin"] if part["split"] == split]
        found.append(
            Dataset(
                name=f"{manifest['corpus']} {split} {source}-{target}",
                digest=sha256(sums.encode()).hexdigest()[:_DIGEST_LENGTH],
                source=json.dumps(origin, ensure_ascii=False),
                pairs=described["pairs"],
                context=CONTEXTS.get(split, "test"),
            )
        )
    return found
