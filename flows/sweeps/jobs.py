"""One training of a row, in its own worktree, which shares the DVC cache.

`dvc exp run --temp` also has its own folder, but loses it after a kill, with the outputs of all stages. A worktree is kept
until its training has ended, and the next start continues in it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.dvc.commands import DVC_FILE, ancestors, dvc, failed_stage, failure, search_path
from flows.dvc.settings import MACHINE
from flows.dvc.worktree import Snapshot, worktree
from flows.process.child import StageLog, git, run_child
from flows.process.paths import AVERAGED, BINARIZED, STATE, TRAINING_METRICS, sections_up_to
from flows.process.runner import StageError
from flows.record.documents import read_output, read_scores
from transformer_core.config import PARAMS_FILE, PRETRAINED, Machine, Train, load_params
from transformer_core.corpus.tokens.binary import read_meta
from transformer_core.errors import UserError
from transformer_core.files import WORKTREES, write_json
from transformer_core.tasks import task_of
from transformer_core.yaml_io import read_yaml

LAST_STAGE = "evaluate"
RESULTS = STATE / "sweeps/results"
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

    @property
    def training(self) -> str:
        """The settings that change weights: jobs with the same ones would write the same state, so they wait for each other."""
        sections = {name: self.document[name] for name in sections_up_to("train")}
        train = Train.model_validate(sections["train"])
        return json.dumps({**sections, "train": train.model_dump(mode="json", exclude=train.without_effect)}, sort_keys=True)

    @property
    def result(self) -> Path:
        """Path of the figures, which are written at the end of the training."""
        return RESULTS / f"{self.key}.json"

    @property
    def workspace(self) -> Path:
        """Path of the worktree in which the training runs."""
        return WORKTREES / self.key[:16]


def code_digest(tree: str) -> str:
    """Return the SHA-256 of what the stages up to evaluate depend on in a tree of git: code, catalogue and pretrained models."""
    stages = read_yaml(Path("dvc.yaml"))["stages"]
    names = (*ancestors(LAST_STAGE), LAST_STAGE)
    wanted = {path for name in names for path in ([name] if name.endswith(DVC_FILE) else stages[name].get("deps", []))}
    # All of `PRETRAINED`: dvc.yaml has the names of its models from the settings, which differ between rows.
    return hashlib.sha256(git(Path(), "ls-tree", "-r", tree, "--", *sorted({*wanted, str(PRETRAINED)})).encode()).hexdigest()


def job_of(row: str, seed: int, document: Mapping[str, Any], digest: str) -> Job:
    """Return the training of a row with a seed; its key depends on the settings and the code of the stages up to evaluate."""
    relevant = {name: document[name] for name in sections_up_to(LAST_STAGE)}
    key = hashlib.sha256(json.dumps([_FORMAT, digest, relevant], sort_keys=True).encode()).hexdigest()
    return Job(row, seed, document, key)


def run_job(job: Job, files: Snapshot, machine: Machine, log: StageLog) -> None:
    """Train, decode and score in the job's worktree, write the figures, and remove the worktree.

    Raises:
        StageError: a stage failed; the worktree is kept, and the next call continues in it.
        UserError: as `worktree`; exit code 69, another sweep runs this training.
    """
    document = {**job.document, MACHINE: machine.model_dump(mode="json")}
    try:
        with worktree(job.workspace.name, files, document, LAST_STAGE) as folder:
            code = run_child(dvc("repro", LAST_STAGE), log, environment={"PATH": search_path()}, directory=folder)
            if code:
                code, reason = failure(failed_stage(log.last_line) or LAST_STAGE, code, log.last_line, folder)
                raise StageError(code, f"{job.name}: {reason}")
            write_json(job.result, _figures(job, folder))
    except UserError as error:
        raise UserError(f"{job.name}: {error.message}", error.remedy, error.exit_code) from None


def _figures(job: Job, folder: Path) -> dict[str, Any]:
    """Return the figures of a training.

    `flops` counts the matrix products of the whole training, at the mean length of the targets; `perplexity` is that of the last checkpoint
    on valid, per subword; `score` is the task's main score on test.
    """
    from transformer_core.models.architectures import cost_of_training  # Here: torch takes seconds to load.
    from transformer_core.models.directory import CONFIG, read_config

    task = task_of(str(job.document["download"]["target"]))
    config, pairs = read_config(folder / AVERAGED / CONFIG), read_meta(folder / BINARIZED / "train")
    cost = cost_of_training(config.model, config.vocabulary.size, round(pairs.target_tokens / pairs.pairs))
    passes = load_params(folder / PARAMS_FILE).train.passes
    scores, training = read_scores(task, folder), read_output(TRAINING_METRICS, folder)
    return {
        **{name: training[name] for name in ("parameters", "updates", "minutes", "tokens_per_second")},
        "flops": passes * cost.flops_a_token * config.training.target_tokens,
        "perplexity": training["valid_perplexity"],
        "score_name": task.score,
        "valid_score": scores["valid"][task.key],
        "score": scores[task.key],
        **{name: scores[name] for name in ("corpus", "signature")},
    }
