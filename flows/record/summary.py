"""The summary of a pipeline run: its stages with their times, sizes and costs, the score, and a link to the training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from flows.process.paths import SCORES, locked_stages
from flows.record.run import NAME, RunRecord
from flows.record.tasks import read_scores, task_scored

if TYPE_CHECKING:
    import pandas as pd

EVALUATE = "evaluate"


@dataclass(frozen=True)
class Outcome:
    """The result of a stage: "ran" (perhaps with a work pool), "cached" or "failed", exit code, duration, error, number of machines."""

    stage: str
    done: str
    code: int
    seconds: float
    message: str = ""
    nodes: int = 1


def table_of(outcomes: Mapping[str, Outcome], price_per_hour: float | None) -> "pd.DataFrame":
    """Return a row for each stage, in order: result, seconds, megabytes of outputs in dvc.lock, and the cost if there is a price."""
    import pandas as pd

    table = pd.DataFrame([asdict(outcome) for outcome in outcomes.values()])
    sizes = {name: sum(out.get("size", 0) for out in stage.get("outs", [])) for name, stage in locked_stages().items()}
    table["megabytes"] = [sizes.get(stage, 0) / 1e6 for stage in table["stage"]]
    columns = ["stage", "done", "seconds", "megabytes"]
    if price_per_hour is not None:
        table["cost"] = table["seconds"] / 3600 * table["nodes"] * price_per_hour
        columns.append("cost")
    return table[columns].round({"seconds": 1, "megabytes": 2, "cost": 2})


def summarize(table: "pd.DataFrame", outcomes: Mapping[str, Outcome], link: str, command: str) -> str:
    """Return the summary in markdown: the table, the score if this run has evaluated, the training in MLflow, and errors.

    The link to the training is empty if there is none; a command that is not empty must be running before the link leads anywhere.
    """
    numbers = {"seconds": ",.1f", "megabytes": ",.2f", "cost": ",.2f"}
    shown = [name for name in numbers if name in table]
    rows = [[row["stage"], row["done"], *(format(row[name], numbers[name]) for name in shown)] for row in table.to_dict("records")]
    if "cost" in table:
        rows.append(["all", "", *(format(table[name].sum(), numbers[name]) for name in shown)])
    parts = [markdown_table(["stage", "", *(name.replace("megabytes", "MB") for name in shown)], rows, text_columns=2)]
    evaluated = outcomes.get(EVALUATE)
    if evaluated and not evaluated.code and SCORES.exists():
        scores = read_scores()
        task = task_scored(scores)
        parts.append(f"{task.score} **{scores[task.key]:.2f}** on the test set of {scores['corpus']}")
    if link:
        parts.append(f"`{command}`, then [the training in MLflow]({link})" if command else f"[The training in MLflow]({link})")
    parts += [f"**{outcome.message}**" for outcome in outcomes.values() if outcome.code]
    return "\n\n".join(parts)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Return a table in markdown. The first `text_columns` are aligned left, the others, of numbers, right."""
    lines = [head, ["---"] * text_columns + ["---:"] * (len(head) - text_columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def record(table: "pd.DataFrame", flow_run: str, flow_run_id: str, training: tuple[str, str]) -> RunRecord:
    """Write the record of a run with the table, a child of `training` (fingerprint and run)."""
    run = RunRecord(id=f"pipeline-{flow_run_id}", parent=training[1] or training[0])
    done = {f"stage.{stage}": done for stage, done in zip(table["stage"], table["done"], strict=True)}
    run.tags |= {NAME: f"pipeline {flow_run}", "kind": "pipeline", "prefect_flow_run": flow_run, "prefect_flow_run_id": flow_run_id, **done}
    for name in table.columns[2:]:
        run.measure(0, dict(zip(table["stage"], table[name], strict=True)), context=name)
        run.measure(0, {name: table[name].sum()})
    run.end()
    return run
