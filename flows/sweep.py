"""Sweeps: the stages up to evaluate over many settings, as the rows of one table (docs/training.md#sweeps).

A row is trained with each combination of the settings, and has the means over its seeds. What has no result yet is trained in its own
worktree, with the cache of this repository. The same command, started again while the first runs, trains the next rows side by side with
it. The table is in a folder of results/sweeps named after the table, settings and options, as CSV, markdown and pictures.
"""

import csv
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from flows.dvc.commands import DVC_FILE, repository_stages, reproduce, stages_up_to
from flows.dvc.settings import MACHINE, settings_of_run
from flows.dvc.worktree import Snapshot, snapshot, worktree
from flows.process.paths import AVERAGED, BINARIZED, BY_LENGTH, STATE, TRAINING_METRICS, VALIDATION, VALIDATION_SCORE, sections_up_to
from flows.process.runner import StageError, echo, reports_errors
from flows.process.signals import stop_on_signals
from flows.record.alarms import alarm
from flows.record.documents import read_output, read_scores
from flows.record.run import identity_of
from flows.record.sending import send_others
from flows.record.server import tracking_uri
from flows.sweeps import table as tables
from flows.sweeps.rows import GRID, choose, document_of, grid, rows_of, scale_for
from transformer_core.cli.arguments import Parser, positive_float, positive_int
from transformer_core.config import PARAMS_FILE, PRETRAINED, Machine, Params, check_params, load_params
from transformer_core.corpus.tokens.binary import read_meta
from transformer_core.errors import ExitCode, UserError, configuration_error
from transformer_core.files import locked, new_directory, read_json, read_numbers, write_json, write_text
from transformer_core.pictures.drawing import save
from transformer_core.project import git
from transformer_core.recipes import spaced
from transformer_core.tasks import task_of

NAMES = ("table3", "table2", "parts", GRID)
TABLES, RESULTS, RATES = Path("results/sweeps"), STATE / "sweeps/results", STATE / "sweeps/rates"
RUNS = "runs.txt"  # The ids of the trainings, for `flows.compare --sweep`.
LAST_STAGE = "evaluate"
_SCALED = ("table2", "table3")
# Version of the format of results.
_FORMAT = 3
_LONGEST_NAME = 100


class Trial(NamedTuple):
    """One training of a row: the tracked sections of params.yaml, and the key of its result."""

    row: str
    seed: int
    document: Mapping[str, Any]
    key: str

    @property
    def result(self) -> Path:
        """Path of the figures, which are written at the end of the training."""
        return RESULTS / f"{self.key}.json"


class Sweep(NamedTuple):
    """A sweep: the trials in the order of the table, the files of their code, and the heading."""

    trials: Sequence[Trial]
    files: Snapshot
    about: tables.About

    @property
    def missing(self) -> list[Trial]:
        """The trials without a result."""
        return [trial for trial in self.trials if not trial.result.exists()]

    @property
    def folder(self) -> Path:
        """The folder of the table, named after it, its settings and options; characters that are awkward in a path become `_`."""
        words = "-".join([self.about.name, *self.about.settings])
        name = re.sub(r"[^\w.,=-]", "_", words, flags=re.ASCII)[:_LONGEST_NAME]
        return TABLES / (name if name == words else f"{name}-{sha256(words.encode()).hexdigest()[:8]}")


def plan(
    name: str,
    settings: Sequence[str] = (),
    recipe: str | None = None,
    rows: Sequence[str] | None = None,
    scale: int | None = None,
    minutes: float | None = None,
) -> Sweep:
    """Plan the trials of a sweep and check the settings of all.

    The key of a result depends on the settings and the code of the stages up to evaluate, edits included.

    Raises `UserError` (78): an unknown recipe, row or key, an invalid value, or no git repository.
    """
    if scale and name not in _SCALED:
        raise configuration_error(f"--scale: {name} has no scale", f"It is for {' and '.join(_SCALED)}.")
    if minutes and (both := {setting.partition("=")[0] for setting in settings} & {f"train.{key}" for key in spaced(1)}):
        raise configuration_error(f"--minutes: {min(both)} is a setting of the sweep", "Leave one of the two out.")
    base, files = check_params(settings_of_run(recipe, {})), snapshot()
    machine = base.machine.model_dump(mode="json")
    options = {"recipe": recipe, "rows": rows and ",".join(rows), "scale": scale, "minutes": minutes}
    scale = scale or (scale_for(base) if name in _SCALED else 1)
    sections = base.model_dump(mode="json", exclude={MACHINE})
    sections["model"] = base.model.model_dump(mode="json", exclude_none=True)
    code, trials = _code(files.tree), []
    for row in grid(choose(rows_of(name, scale, base.train.learning_rate_factor), rows), settings):
        document = document_of(row, sections)
        params = check_params({**document, MACHINE: machine})
        if minutes:
            document["train"].update(spaced(_updates_within(minutes, params)))
            check_params(document)
        relevant = {name: document[name] for name in sections_up_to(LAST_STAGE)}
        key = sha256(json.dumps([_FORMAT, code, relevant], sort_keys=True).encode()).hexdigest()
        trials.append(Trial(row.name, document["train"]["seed"], document, key))
    given = [*settings, *(f"--{option}={value}" for option, value in options.items() if value)]
    return Sweep(trials, files, tables.About(name, recipe or PARAMS_FILE.name, scale if name == "table3" else 1, given))


def _updates_within(minutes: float, params: Params) -> int:
    """Return `updates_within`, measured once for all seeds of a row, so that a sweep can be started again."""
    from transformer_core.training.throughput import updates_within  # Here: torch takes seconds to load.

    settings = params.model_copy(update={"train": params.train.model_copy(update={"seed": 0})}).model_dump_json()
    measured = RATES / f"{sha256(settings.encode()).hexdigest()}.json"
    if not measured.exists():
        write_json(measured, {"updates_a_minute": updates_within(60, params) / 60})
    return int(minutes * read_json(measured, "Remove it.")["updates_a_minute"])


def _code(tree: str) -> str:
    """Return the SHA-256 of what the stages up to evaluate depend on in a tree of git: code, catalogue and pretrained models."""
    stages = repository_stages()
    deps = {path for name in stages_up_to(LAST_STAGE) for path in stages[name].get("deps", [])}
    # All of `PRETRAINED`: dvc.yaml has the names of its models from the settings, which differ between rows.
    wanted = sorted({*deps, *(f"{path}{DVC_FILE}" for path in deps), str(PRETRAINED)})
    return sha256(git(Path(), "ls-tree", "-r", tree, "--", *wanted).encode()).hexdigest()


def train(trial: Trial, files: Snapshot, machine: Machine) -> None:
    """Train, decode and score in a worktree, and write the figures.

    Raises `StageError`: a stage failed; the worktree is kept, and the next call continues in it. `UserError`: as `worktree`; 69, another
    process trains it.
    """
    result = trial.result.absolute()
    with worktree(files, {**trial.document, MACHINE: machine.model_dump(mode="json")}) as folder, chdir(folder):
        for name in stages_up_to(LAST_STAGE):
            reproduce(name, machine, partial(echo, stream=sys.stderr))
        write_json(result, _figures(trial))


def _figures(trial: Trial) -> dict[str, Any]:
    """Return the figures of a training whose outputs are in the working directory.

    `flops` counts the matrix products of the whole training, at the mean length of the targets; `perplexity` is that of the last checkpoint
    on valid, per subword; `score` is the task's main score on test. `curve` has pairs of minutes of training and the score of a validation,
    `lengths` pairs of the fewest words of a group of sources and its score on test.
    """
    from transformer_core.models.architectures import cost_of_training  # Here: torch takes seconds to load.
    from transformer_core.models.directory import CONFIG, read_config

    task = task_of(str(trial.document["download"]["target"]))
    config, pairs = read_config(AVERAGED / CONFIG), read_meta(BINARIZED / "train")
    cost = cost_of_training(config.model, config.vocabulary.size, round(pairs.target_tokens / pairs.pairs))
    passes, (_, *groups) = load_params().train.passes, csv.reader(BY_LENGTH.read_text(encoding="utf-8").splitlines())
    scores, training = read_scores(task), read_output(TRAINING_METRICS)
    return {
        **{name: training[name] for name in ("parameters", "updates", "minutes", "tokens_per_second")},
        "flops": passes * cost.flops_a_token * config.training.target_tokens,
        "perplexity": training["valid_perplexity"],
        "score_name": task.score,
        "valid_score": scores["valid"][task.key],
        "score": scores[task.key],
        "run": identity_of(config.training.model_dump()),
        **{name: scores[name] for name in ("corpus", "signature")},
        "curve": [(row["seconds"] / 60, row[VALIDATION_SCORE]) for row in read_numbers(VALIDATION)],
        "lengths": [(int(re.split("[-+]", words)[0]), float(score)) for words, _, score in groups],
    }


def write_table(planned: Sweep) -> str:
    """Write the table of the trials with a result, and return its markdown."""
    # A result may be of another sweep, in which its row had another name.
    done, remedy = [trial for trial in planned.trials if trial.result.exists()], "Remove it, then run the sweep again."
    results = [{**read_json(trial.result, remedy), "row": trial.row, "seed": trial.seed} for trial in done]
    table = tables.summarize(results, with_paper=planned.about.name == "table3")
    text = tables.markdown(table, results, planned.about)
    with locked(STATE / "locks" / "sweep-table", "the table of a sweep"), new_directory(planned.folder) as temporary:
        table.to_csv(temporary / "table.csv", index=False)
        write_text(temporary / "table.md", text)
        for picture, figure in tables.pictures(table, results).items():
            save(figure, temporary / f"{picture}.svg")
        write_text(temporary / RUNS, "".join(f"{result['run']}\n" for result in results if "run" in result))
    return text


@reports_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Train the rows of a table that have no result yet, and write the table to a folder of results/sweeps."""
    planned, machine = plan(**vars(_parser().parse_intermixed_args(arguments))), load_params().machine  # Settings may stand after options.
    done, missing, code = len(planned.trials) - len(planned.missing), planned.missing, int(ExitCode.DONE)
    echo(f"{len(planned.trials)} trainings, {done} of them done, {len(missing)} to run", sys.stderr)
    stop_on_signals()
    for trial in missing:
        if trial.result.exists():  # By another process.
            continue
        name = f"{trial.row}, seed {trial.seed}"
        echo(f"Training {name}", sys.stderr)
        try:
            train(trial, planned.files, machine)
        except (StageError, UserError) as error:  # 69, another process trains it.
            echo(f"{name}: {error}", sys.stderr)
            if error.exit_code != ExitCode.UNAVAILABLE or isinstance(error, StageError):
                alarm(machine, trial.key, "failed", f"sweep: {name}: {error}", "Run the sweep again: it goes on from there.")
            code = code or error.exit_code
    send_others(tracking_uri(machine))
    if len(planned.missing) < len(planned.trials):
        print(write_table(planned))
        print(f"{planned.folder}: table.csv, table.md and pictures")
    return code


def _parser() -> Parser:
    parser = Parser(prog="python -m flows.sweep", description=main.__doc__)
    parser.add_argument("name", choices=NAMES, help="a table of the paper, or a grid of settings")
    parser.add_argument("settings", nargs="*", metavar="KEY=V1,V2", help="values of a setting, as train.warmup=200,400")
    parser.add_argument("--recipe", metavar="NAME", help="corpus and training (default: params.yaml as it is)")
    parser.add_argument("--rows", metavar="A,B", type=lambda text: text.split(","), help="rows of the table (default: all)")
    minutes = "updates of each row: as many as take M minutes on this machine, whose speed is measured once"
    parser.add_argument("--minutes", metavar="M", type=positive_float, help=minutes)
    scale = "divide the paper's widths by S (default: the power of two at which base is not wider than the recipe's model)"
    parser.add_argument("--scale", metavar="S", type=positive_int, help=scale)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
