"""What a run of the pipeline did: its stages with their times, sizes and costs, the score, and the way to the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.process.paths import METRICS
from flows.record.journal import NAME, Journal
from flows.record.tasks import task_scored
from transformer_core.config import read_yaml
from transformer_core.files import read_json

EVALUATE = "evaluate"
_LOCK = Path("dvc.lock")


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: what was done ("ran", "cached", "failed"), its exit code, the time on so many machines, and why it failed."""

    stage: str
    done: str
    code: int
    seconds: float
    message: str = ""
    nodes: int = 1


@dataclass(frozen=True)
class Row:
    """A stage in the table: megabytes of its outputs, and the cost of its time on all machines, where there is a price."""

    stage: str
    done: str
    seconds: float
    megabytes: float
    cost: float | None


def rows(outcomes: Mapping[str, Outcome], price_per_hour: float | None, root: Path = Path()) -> list[Row]:
    """The table of the stages of the repository at `root`, in their order."""
    sizes = _sizes(root / _LOCK)
    return [
        Row(
            stage=one.stage,
            done=one.done,
            seconds=round(one.seconds, 1),
            megabytes=round(sizes.get(one.stage, 0) / 1e6, 2),
            cost=None if price_per_hour is None else round(one.seconds / 3600 * one.nodes * price_per_hour, 2),
        )
        for one in outcomes.values()
    ]


def _sizes(lock: Path) -> dict[str, int]:
    """Bytes of each stage's outputs, as dvc.lock has them."""
    stages = read_yaml(lock)["stages"] if lock.exists() else {}
    return {name: sum(out.get("size", 0) for out in stage.get("outs", [])) for name, stage in stages.items()}


def summarize(table: list[Row], outcomes: Mapping[str, Outcome], link: str) -> str:
    """What was done, as markdown: the table; the score where this run has got so far; the training's run in MLflow; what failed."""
    with_cost = any(row.cost is not None for row in table)
    lines = ["| stage | | seconds | MB |" + (" cost |" if with_cost else ""), "|---|---|---:|---:|" + ("---:|" if with_cost else "")]
    for row in table:
        lines.append(
            f"| {row.stage} | {row.done} | {row.seconds:,.1f} | {row.megabytes:,.2f} |" + (f" {row.cost:,.2f} |" if with_cost else "")
        )
    if with_cost:
        seconds, megabytes = sum(row.seconds for row in table), sum(row.megabytes for row in table)
        lines.append(f"| all | | {seconds:,.1f} | {megabytes:,.2f} | {sum(row.cost or 0 for row in table):,.2f} |")
    parts = ["\n".join(lines)]
    evaluated = outcomes.get(EVALUATE)
    if evaluated and not evaluated.code and METRICS.exists():
        figures = read_json(METRICS)
        synthetic = " (synthetic)" if figures["synthetic"] else ""
        task = task_scored(figures)
        parts.append(f"{task.score} **{figures[task.key]:.2f}** on the test set of {figures['corpus']}{synthetic}")
    if link:
        parts.append(f"[The training in MLflow]({link})")
    parts += [f"**{outcome.message}**" for outcome in outcomes.values() if outcome.code]
    return "\n\n".join(parts)


def record(table: list[Row], flow_run: str, flow_run_id: str, training: str) -> Path:
    """Write the table into the journal of a run of its own, a child of the training's; the journal's path.

    Args:
        table: what the flow run did.
        flow_run: its name.
        flow_run_id: Prefect's id of it.
        training: fingerprint.
    """
    journal = Journal(f"pipeline-{flow_run_id}", parent=training)
    done = {f"stage.{row.stage}": row.done for row in table}
    journal.tags(
        {NAME: f"pipeline {flow_run}", "kind": "pipeline", "prefect_flow_run": flow_run, "prefect_flow_run_id": flow_run_id, **done}
    )
    journal.metrics(0, {row.stage: row.seconds for row in table}, context="seconds")
    journal.metrics(0, {row.stage: row.megabytes for row in table}, context="megabytes")
    journal.metrics(0, {row.stage: row.cost for row in table if row.cost is not None}, context="cost")
    journal.end()
    return journal.path
