"""The summary of a pipeline run: its stages with their times and sizes, the score, and a link to the training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flows.process.paths import SCORES, locked_stages
from flows.record.costs import Costs, in_words
from flows.record.documents import read_scores, task_scored


@dataclass(frozen=True)
class Outcome:
    """The result of a stage: "ran" (perhaps with a work pool), "cached" or "failed", exit code, duration, error."""

    stage: str
    done: str
    code: int
    seconds: float
    message: str = ""


def summarize(outcomes: Mapping[str, Outcome], link: str, command: str, costs: Costs) -> str:
    """Return the summary in markdown: stages with the sizes of their outputs in dvc.lock, costs, score, training in MLflow, and errors.

    The link to the training is empty if there is none; a command that is not empty must be running before the link leads anywhere.
    """
    sizes = {name: sum(out.get("size", 0) for out in stage.get("outs", [])) / 1e6 for name, stage in locked_stages().items()}
    further = {head: costs[kind] for head, kind in (("price", "price"), ("kWh", "kwh")) if costs.get(kind)}
    rows = [[name, one.done, f"{one.seconds:,.1f}", f"{sizes.get(name, 0.0):,.2f}"] for name, one in outcomes.items()]
    for row in rows:
        row += [f"{of_stage[row[0]]:.4g}" if row[0] in of_stage else "" for of_stage in further.values()]
    parts = [markdown_table(["stage", "", "seconds", "MB", *further], rows, text_columns=2)]
    parts += [f"Together {in_words(costs)}"] if further else []
    evaluated = outcomes.get("evaluate")
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
