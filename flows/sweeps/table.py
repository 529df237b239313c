"""The table of a sweep: figures of each row over its seeds, with the paper's figures, as CSV, markdown and pictures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flows.record.summary import markdown_table
from transformer_core.pictures.curves import line_figure
from transformer_core.pictures.drawing import FIRST, new_figure
from transformer_core.presets import TABLE_3

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FIGURES = ("perplexity", "valid_score", "score")
_WIDTH, _HEIGHT = 520, 22  # Pixels, of a picture and of a row in it.
# The columns of the paper's figures: field of TABLE_3, heading, and form.
_PAPER = {
    "paper_parameters": ("millions", "paper: parameters", ".0f"),
    "paper_perplexity": ("perplexity", "paper: PPL", ".2f"),
    "paper_bleu": ("bleu", "paper: BLEU", ".1f"),
}


class About(NamedTuple):
    """The heading of a table: `scale` divides the paper's widths; `settings` are those of the sweep and its options, as given."""

    name: str
    recipe: str
    scale: int
    settings: Sequence[str]


def summarize(results: Sequence[dict[str, Any]], with_paper: bool = False) -> "pd.DataFrame":
    """Return a line for each row, in the order of the results: means over seeds, and half the width of 95% intervals (Student's t).

    The interval of a row with one seed is NaN. `with_paper` adds the figures of the same rows in the paper's Table 3.
    """
    import pandas as pd
    from scipy.stats import t  # type: ignore[import-untyped]

    frame = pd.DataFrame(list(results))
    grouped = frame.groupby("row", sort=False)
    of_seeds = {"parameters": "first", "updates": "first", "minutes": "mean", "flops": "mean"}
    table = grouped.agg(seeds=("seed", "count"), **{name: (name, how) for name, how in of_seeds.items()})
    for name in FIGURES:
        table[name] = grouped[name].mean()
        quantile = t.ppf(0.975, table["seeds"] - 1)
        table[f"{name}_interval"] = quantile * grouped[name].std() / table["seeds"] ** 0.5
    table = table.reset_index()
    for column, (field, _, _) in _PAPER.items() if with_paper else ():
        of_paper = {row: getattr(figures, field) for row, figures in TABLE_3.items()}
        table[column] = table["row"].str.split(" ").str[0].map(of_paper).astype(float)
    return table


def markdown(table: "pd.DataFrame", results: Sequence[dict[str, Any]], about: About) -> str:
    """Return the table with a heading for corpus and training."""
    score, updates = results[0]["score_name"], sorted({result["updates"] for result in results})
    trained = " to ".join(f"{number:,}" for number in dict.fromkeys((updates[0], updates[-1])))
    smaller = f" Scaled down: every width of the paper is divided by {about.scale}." if about.scale > 1 else ""
    heading = (
        f"Sweep `{' '.join([about.name, *about.settings])}` of the recipe {about.recipe}, "
        f"corpus {_each_once(results, 'corpus')}, {trained} updates.{smaller}\n"
        "FLOPs count the products of one training (a multiplication and an addition are two). PPL is per subword, on valid. "
        f"{score} is {_each_once(results, 'signature')}. ± is half of a 95% interval over seeds (Student's t)."
    )
    columns = ["row", "seeds", "parameters (millions)", "minutes", "FLOPs", "PPL valid", f"{score} valid", f"{score} test"]
    paper = {name: (heading, form) for name, (_, heading, form) in _PAPER.items() if name in table}
    lines = []
    for row in table.to_dict("records"):
        cells = [row["row"], str(row["seeds"]), f"{row['parameters'] / 1e6:.2f}", f"{row['minutes']:.1f}", f"{row['flops']:.1e}"]
        cells += [_number(row[name], ".2f") + _number(row[f"{name}_interval"], ".2f", " ± ") for name in FIGURES]
        lines.append(cells + [_number(row[name], form) for name, (_, form) in paper.items()])
    head = markdown_table([*columns, *(heading for heading, _ in paper.values())], lines)
    return f"{heading}\n\n{head}\n"


def pictures(table: "pd.DataFrame", results: Sequence[dict[str, Any]]) -> "dict[str, Figure]":
    """Draw the main score: on test by row, with its interval; on a part of valid over the minutes; on test over the words of the source."""
    import pandas as pd

    score, rows = results[0]["score_name"], pd.DataFrame(list(results)).groupby("row", sort=False)
    bars = new_figure(_WIDTH, _HEIGHT * (len(table) + 3))
    bars.set_layout_engine("constrained")
    axes = bars.subplots()
    axes.errorbar(table["score"], table["row"], xerr=table["score_interval"].fillna(0), fmt="o", color=FIRST)
    axes.invert_yaxis()
    axes.set_xlabel(f"{score} test")
    drawn = {"score": bars}
    for name, measure, unit in (("curve", f"{score} valid, greedy", "minutes"), ("lengths", f"{score} test", "words of the source")):
        # Means over seeds: of each validation, which a training that ended early lacks, or of each group.
        points = {str(row): pd.concat(map(pd.DataFrame, of_seeds)).groupby(level=0).mean() for row, of_seeds in rows[name]}
        means = {row: of_row.set_index(0)[1] for row, of_row in points.items()}
        if figure := line_figure(means, measure, unit=unit):
            drawn[name] = figure
    return drawn


def _each_once(results: Sequence[dict[str, Any]], name: str) -> str:
    return " or ".join(dict.fromkeys(result[name] for result in results))


def _number(value: float, form: str, before: str = "") -> str:
    """Return a number, or nothing for NaN."""
    return "" if value != value else f"{before}{value:{form}}"
