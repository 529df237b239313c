"""One training of a row, in its own clone, which shares the DVC cache.

`dvc exp run --temp` also has its own folder, but loses it after a kill, with the outputs of all stages. A clone is kept
until its training has ended, and the next start continues in it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.cluster.node import StageRun, check_out
from flows.process.child import StageLog, git, run_child
from flows.process.paths import AVERAGED, BINARIZED, STATE, TRAINING_METRICS, sections_up_to
from flows.process.repro import DVC_FILE, ancestors, dvc, failed_stage, failure, search_path, without_advice
from flows.process.runner import EXITS, StageError
from flows.record.documents import read_output
from flows.record.run import records
from flows.record.store import SQLITE, tracking_uri
from flows.record.tasks import read_scores
from transformer_core.config import PARAMS_FILE, PRETRAINED, Machine, Train, load_params
from transformer_core.corpus.sources.fetching import MIRROR_VARIABLE
from transformer_core.corpus.tokens.binary import read_meta
from transformer_core.errors import configuration_error
from transformer_core.files import expanded, locked, write_json, write_text
from transformer_core.tasks import task_of
from transformer_core.yaml_io import read_yaml, yaml_text

LAST_STAGE = "evaluate"
SWEEPS = STATE / "sweeps"
# Version of the format of results.
_FORMAT = 2


@dataclass(frozen=True)
class Job:
    """One training of a row: the tracked sections of params.yaml, and the key of its result."""

    row: str
    seed: int
    document: Mapping[str, Any]
    key: str

    @property
    def name(self) -> str:
        """Row and seed."""
        return f"{self.row}, seed {self.seed}"

    def training(self, one_state: bool) -> str:
        """Return the settings up to the training: jobs with the same ones share its result in the run-cache.

        With `one_state`, jobs that differ in nothing that changes weights are the same, because they would write the same state.
        """
        sections = {name: self.document[name] for name in sections_up_to("train")}
        if one_state:
            train = Train.model_validate(sections["train"])
            sections["train"] = train.model_dump(mode="json", exclude=train.without_effect)
        return json.dumps(sections, sort_keys=True)

    @property
    def result(self) -> Path:
        """Path of the figures, which are written at the end of the training."""
        return SWEEPS / "results" / f"{self.key}.json"

    @property
    def workspace(self) -> Path:
        """Path of the clone in which the training runs."""
        return SWEEPS / "workspaces" / self.key[:16]


@dataclass(frozen=True)
class Repository:
    """The source of the workspaces of a sweep.

    Attributes:
        root: folder of the repository.
        url: address from which other machines clone it.
        commit: commit of the code that the trainings run.
        cache: folder of the DVC cache.
        machine: section `machine`, with absolute paths of the mirror and of a record in a file. $MLFLOW_TRACKING_URI may hold a password
            and is in no file.
    """

    root: Path
    url: str
    commit: str
    cache: str
    machine: Mapping[str, Any]

    @classmethod
    def here(cls, url: str, commit: str, machine: Machine) -> "Repository":
        """Return the repository in the working directory."""
        cache = subprocess.run(dvc("cache", "dir"), check=True, capture_output=True, text=True).stdout.strip()
        uri, section = tracking_uri(machine), machine.model_dump()
        if uri.startswith(SQLITE):
            section["tracking_uri"] = f"{SQLITE}{Path(uri.removeprefix(SQLITE)).resolve()}"
        if machine.mirror:
            section["mirror"] = str(expanded(machine.mirror).resolve())
        return cls(Path.cwd(), url, commit, str(Path(cache).resolve()), section)


def code_digest(commit: str) -> str:
    """Return the SHA-256 of a commit's code, catalogue and pretrained models, as far as the stages up to evaluate depend on them."""
    stages = read_yaml(Path("dvc.yaml"))["stages"]
    names = (*ancestors(LAST_STAGE), LAST_STAGE)
    wanted = {path for name in names for path in ([name] if name.endswith(DVC_FILE) else stages[name].get("deps", []))}
    # All of `PRETRAINED`: dvc.yaml has the names of its models from the settings, which differ between rows.
    return hashlib.sha256(git(Path(), "ls-tree", "-r", commit, "--", *sorted({*wanted, str(PRETRAINED)})).encode()).hexdigest()


def job_of(row: str, seed: int, document: Mapping[str, Any], digest: str) -> Job:
    """Return the training of a row with a seed; its key depends on the settings and the code of the stages up to evaluate."""
    relevant = {name: document[name] for name in sections_up_to(LAST_STAGE)}
    key = hashlib.sha256(json.dumps([_FORMAT, digest, relevant], sort_keys=True).encode()).hexdigest()
    return Job(row, seed, document, key)


def run_job(job: Job, repository: Repository, log: StageLog) -> None:
    """Train, decode and score in the job's workspace, write the figures, and remove the workspace.

    With `machine.pools`, the workspace runs the flow `pipeline`, which sends stages to other machines; otherwise it runs DVC.

    Raises:
        StageError: a stage failed; the workspace is kept, and the next call continues in it.
        UserError: as `_prepare`; exit code 69, another sweep runs this training.
    """
    clone, in_pools = job.workspace, bool(repository.machine["pools"])
    command = [sys.executable, "-m", "flows.pipeline", "--last-stage", LAST_STAGE] if in_pools else dvc("repro", LAST_STAGE)
    with locked(SWEEPS / "locks" / job.key[:16], f"the training {job.name}"):
        _prepare(clone, job, repository)
        code = run_child(command, without_advice(log), environment=environment(), directory=clone)
        if code:
            raise StageError(code, f"{job.name}: {log.last_line}") if in_pools else StageError(*_reason(job, code, log.last_line))
        if (clone / STATE / records().name).exists():
            shutil.copytree(clone / STATE / records().name, records(), dirs_exist_ok=True)
        write_json(job.result, _figures(job, clone))
        shutil.rmtree(clone)


def environment() -> dict[str, str]:
    """Return the variables of a process in a workspace that differ from this one's: a relative path is one from this directory."""
    mirror = os.environ.get(MIRROR_VARIABLE)
    return {"PATH": search_path()} | ({MIRROR_VARIABLE: str(expanded(mirror).resolve())} if mirror else {})


def _prepare(clone: Path, job: Job, repository: Repository) -> None:
    """Check out the commit; configure the repository's DVC cache and remote, its address for nodes, and the job's settings.

    Raises `UserError`: as `check_out`; exit code 78 if DVC cannot check out the data of a .dvc file.
    """
    check_out(StageRun(LAST_STAGE, str(repository.root), repository.commit), clone)
    shutil.rmtree(clone / EXITS, ignore_errors=True)  # Of an earlier try.
    git(clone, "config", "remote.origin.url", repository.url)
    config = repository.root / ".dvc" / "config.local"
    if config.exists():
        shutil.copy(config, clone / ".dvc")
    subprocess.run(dvc("cache", "dir", "--local", repository.cache), cwd=clone, check=True, capture_output=True)
    write_text(clone / PARAMS_FILE, yaml_text({**job.document, "machine": dict(repository.machine)}))
    sources = [name for name in ancestors(LAST_STAGE, clone) if name.endswith(DVC_FILE)]
    if sources:
        # Not --quiet, which says nothing of a failure either.
        done = subprocess.run(dvc("checkout", *sources), cwd=clone, check=False, capture_output=True, text=True)
        if done.returncode:
            reason = " ".join(done.stderr.rpartition("ERROR: ")[2].split())
            raise configuration_error(f"{job.name}: dvc checkout: {reason}", f"Fetch missing data: dvc pull {' '.join(sources)}")


def _reason(job: Job, code: int, last_line: str) -> tuple[int, str]:
    """Return exit code and reason of the stage that DVC names or, if it names none, of the last one that reported its exit."""
    ended = sorted((job.workspace / EXITS).glob("*.json"), key=lambda file: file.stat().st_mtime)
    # A stage that was killed outright has left no report, but those before it have.
    stage = failed_stage(last_line) or (ended[-1].stem if ended else LAST_STAGE)
    code, reason = failure(stage, code, last_line, job.workspace)
    return code, f"{job.name}: {reason}"


def _figures(job: Job, clone: Path) -> dict[str, Any]:
    """Return the figures of a training.

    `flops` counts the matrix products of the whole training, at the mean length of the targets; `perplexity` is that of the last checkpoint
    on valid, per subword; `score` is the task's main score on test.
    """
    from transformer_core.models.architectures import cost_of_training  # Here: torch takes seconds to load.
    from transformer_core.models.directory import CONFIG, read_config

    task = task_of(str(job.document["download"]["target"]))
    config, pairs = read_config(clone / AVERAGED / CONFIG), read_meta(clone / BINARIZED / "train")
    cost = cost_of_training(config.model, config.vocabulary.size, round(pairs.target_tokens / pairs.pairs))
    passes = load_params(clone / PARAMS_FILE).train.passes
    scores, training = read_scores(task, clone), read_output(TRAINING_METRICS, clone)
    return {
        **{name: training[name] for name in ("parameters", "updates", "minutes", "tokens_per_second")},
        "flops": passes * cost.flops_a_token * config.training.target_tokens,
        "perplexity": training["valid_perplexity"],
        "score_name": task.score,
        "valid_score": scores["valid"][task.key],
        "score": scores[task.key],
        **{name: scores[name] for name in ("corpus", "signature")},
    }
