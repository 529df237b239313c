"""The origin of a run: commit, dvc.lock, versions, and the flow run or job that started it."""

import os
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flows.process.paths import DVC_LOCK, MANIFEST, TRAINING, UPDATES, VALIDATION, sections_up_to
from flows.record.run import COMMIT, FINGERPRINT, NAME, RunRecord, flatten, identity_of, now_ms
from transformer_core.config import Params
from transformer_core.errors import UserError
from transformer_core.files import DVC_EXPERIMENT, read_numbers, sha256_of
from transformer_core.project import git

PACKAGES = ("torch", "sentencepiece", "sacrebleu")
# The flow sets these for the stages that it starts.
FLOW_RUN_ID, FLOW_RUN_NAME = "TRANSFORMER_FLOW_RUN_ID", "TRANSFORMER_FLOW_RUN_NAME"
# Variables of Slurm that a run has as tags of their names in lower case: job, account and nodes.
_OF_SLURM = ("SLURM_JOB_ID", "SLURM_JOB_ACCOUNT", "SLURM_JOB_NODELIST")


def lineage() -> dict[str, str]:
    """Return tags of the code and data of a run, without those that are unknown: the commit outside git, the job outside Slurm.

    `git_dirty` is whether tracked files differ from the commit, without dvc.lock: the run itself writes it, and its sum is a tag.
    """
    commit, differs = "", ""
    with suppress(OSError, UserError):
        status = ("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{DVC_LOCK}")
        commit, differs = git(Path(), "describe", "--always", "--abbrev=12", "--exclude=*"), git(Path(), *status)
    tags = {
        COMMIT: commit,
        "git_commit": commit,
        "git_dirty": str(bool(differs)).lower() if commit else "",
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
    """Set the settings and name of a training, and attach the manifest of its corpus if it is here (`read_manifest`)."""
    # Without the sections that decide the scores of a trained model: an evaluation records them, and a training may have several.
    record.parameters = flatten(params.model_dump(include={*sections_up_to("train")}, exclude_none=True))
    record.tags |= {NAME: training_name(params)}
    if MANIFEST.exists():
        record.attach_files([MANIFEST])


def record_from_tables(params: Params, training: Mapping[str, Any]) -> RunRecord:
    """Write and return the record of a training from DVC's cache, ended now, from its CSV files and key `training` of its config.json."""
    seconds = max((row["seconds"] for row in read_numbers(UPDATES)), default=0.0)
    record = RunRecord(id=identity_of(training), start_ms=now_ms() - round(1000 * seconds), score=params.download.task.key)
    describe_training(record, params)
    record.tags |= {FINGERPRINT: training["fingerprint"], "filled_from": TRAINING.as_posix()}
    record.folder.mkdir(parents=True, exist_ok=True)
    for table in (UPDATES, VALIDATION):
        shutil.copyfile(table, record.folder / table.name)
    record.end()
    return record


def training_name(params: Params) -> str:
    """Return the readable name of a training: multi30k en-de small, seed 1. One that goes on from a model has that one's size."""
    model, data = params.model, params.download
    kind = [] if model.architecture == "transformer" else [model.architecture]
    size = f"from {params.train.init_from}" if params.train.init_from else model.preset
    return f"{' '.join([data.corpus, f'{data.source}-{data.target}', *kind, size])}, seed {params.train.seed}"
