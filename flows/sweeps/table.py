"""The table of a sweep: figures of each row over its seeds, with the paper's figures, as CSV and markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.record.summary import markdown_table
from transformer_core.files import new_directory
from transformer_core.presets import TABLE_3

if TYPE_CHECKING:
    import pandas as pd

FIGURES = ("perplexity", "valid_score", "score")
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class About:
    """The heading of a table.

    Attributes:
        scale: divisor of the paper's widths.
        settings: the grid of a sweep of params, as given.
        price_per_hour: of all machines of a training; None for a table without costs.
    """

    name: str
    recipe: str
    scale: int
    settings: Sequence[str]
    price_per_hour: float | None


def summarize(results: Sequence[dict[str, Any]]) -> "pd.DataFrame":
    """Return a line for each row, in the order of the results: means over seeds, and half the width of 95% intervals (Student's t).

    The interval of a row with one seed is NaN.
    """
    import pandas as pd
    from scipy.stats import t  # type: ignore[import-untyped]

    frame = pd.DataFrame(list(results))
    grouped = frame.groupby("row", sort=False)
    table = grouped.agg(
        seeds=("seed", "count"),
        parameters=("parameters", "first"),
        updates=("updates", "first"),
        minutes=("minutes", "mean"),
        flops=("flops", "mean"),
    )
    for name in FIGURES:
        table[name] = grouped[name].mean()
        quantile = t.ppf((1 + _CONFIDENCE) / 2, table["seeds"] - 1)
        table[f"{name}_interval"] = quantile * grouped[name].std() / table["seeds"] ** 0.5
    return table.reset_index()


def beside_the_paper(table: "pd.DataFrame", name: str) -> "pd.DataFrame":
    """Add the paper's figures of the same rows if the table is Table 3."""
    if name != "table3":
        return table
    import pandas as pd

    paper = pd.DataFrame(
        {"row": key, "paper_parameters": row.millions, "paper_perplexity": row.perplexity, "paper_bleu": row.bleu}
        for key, row in TABLE_3.items()
    )
    return table.merge(paper, on="row", how="left")


def markdown(table: "pd.DataFrame", results: Sequence[dict[str, Any]], about: About) -> str:
    """Return the table with a heading for corpus and training; Table 2 is followed by the paper's figures."""
    first = results[0]
    updates = sorted({result["updates"] for result in results})
    signatures = _each_once(result["signature"] for result in results)
    trained = " to ".join(f"{number:,}" for number in dict.fromkeys((updates[0], updates[-1])))
    corpora = [result["corpus"] for result in results]
    smaller = f" Scaled down: every width of the paper is divided by {about.scale}." if about.scale > 1 else ""
    heading = (
        f"Sweep `{' '.join([about.name, *about.settings])}` of the recipe {about.recipe}, "
        f"corpus {_each_once(corpora)}, {trained} updates.{smaller}\n"
        "FLOPs count the products of one training (a multiplication and an addition are two). PPL is per subword, on valid. "
        f"{first['score_name']} is {signatures}. ± is half of a 95% interval over seeds (Student's t)."
    )
    columns = ["row", "seeds", "parameters (millions)", "minutes", "FLOPs"]
    columns += [] if about.price_per_hour is None else ["cost"]
    columns += ["PPL valid", f"{first['score_name']} valid", f"{first['score_name']} test"]
    with_paper = "paper_bleu" in table
    if with_paper:
        columns += ["paper: parameters", "paper: PPL", "paper: BLEU"]
    lines = []
    for row in table.to_dict("records"):
        cells = [row["row"], str(row["seeds"]), f"{row['parameters'] / 1e6:.2f}", f"{row['minutes']:.1f}", f"{row['flops']:.1e}"]
        cells += [] if about.price_per_hour is None else [f"{row['minutes'] / 60 * about.price_per_hour:.2f}"]
        cells += [_with_interval(row[name], row[f"{name}_interval"]) for name in FIGURES]
        if with_paper:
            cells += [_or_nothing(row["paper_parameters"], ".0f"), _or_nothing(row["paper_perplexity"], ".2f")]
            cells += [_or_nothing(row["paper_bleu"], ".1f")]
        lines.append(cells)
    return "\n\n".join([heading, markdown_table(columns, lines), *([_published()] if about.name == "table2" else [])]) + "\n"


def write(table: "pd.DataFrame", text: str, folder: Path) -> None:
    """Write table.csv and table.md to a folder, both or none."""
    with new_directory(folder) as temporary:
        table.to_csv(temporary / "table.csv", index=False)
        (temporary / "table.md").write_text(text, encoding="utf-8")


def _each_once(values: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(values))


def _published() -> str:
    import pandas as pd

    with resources.files(__package__).joinpath("table2.csv").open(encoding="utf-8") as file:
        published = pd.read_csv(file, dtype=str).fillna("")
    head = ["system", "BLEU En-De", "BLEU En-Fr", "FLOPs En-De", "FLOPs En-Fr"]
    body = markdown_table(head, published.to_numpy().tolist())
    return f"As published, on newstest2014 (Vaswani et al. 2017, Table 2; not comparable with the scores above):\n\n{body}"


def _with_interval(mean: float, interval: float) -> str:
    return f"{mean:.2f}" if interval != interval else f"{mean:.2f} ± {interval:.2f}"


def _or_nothing(value: float, form: str) -> str:
    return "" if value != value else format(value, form)
