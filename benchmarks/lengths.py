"""Sentences longer than those trained on (paper 3.5), with each form of positions: ``python benchmarks/lengths.py``.

The training pairs are generated and cleaned to at most TRAINED_WORDS words on a side; the test set keeps its lengths. Models with
sinusoidal, learned and no positions are trained with the same updates. A control with sinusoids is trained on pairs of all lengths: its
scores show how hard long sentences are without extrapolation. Each form runs in its own folder under --work and is not run again if its
translations exist. Writes BLEU and chrF2 by words of the source into --table and draws BLEU into --plot.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from common import DATA_STAGES, ROOT, command_line, markdown, run_stages, svg_figure, write_params
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_core.corpus.tokens.binary import open_split
from transformer_core.evaluation.metrics import read_aligned
from transformer_core.evaluation.significance import intervals

PAIRS = {"train": 100_000, "valid": 200, "test": 4_000}
TRAINED_WORDS = 12  # On either side: half of the generated pairs are within it.
ALL_WORDS = 100
GREATEST_WORDS = (6, TRAINED_WORDS, 16, 20, 30, 40, 60)  # Of the source, by group; the grammar makes no sentence longer than the last.


@dataclass(frozen=True)
class Form:
    """A model of the comparison: its positions, and the greatest number of words on a side of its training pairs."""

    name: str
    positions: str
    words: int = TRAINED_WORDS


FORMS = (
    Form("sinusoidal", "sinusoidal"),
    Form("learned", "learned"),
    Form("none", "none"),
    Form("sinusoidal, trained on all lengths", "sinusoidal", ALL_WORDS),
)


def main() -> None:
    """Run the forms that have no translations yet, then score, print and draw."""
    parser = command_line(__doc__)
    parser.add_argument("--updates", type=int, default=800)
    parser.add_argument("--work", type=Path, default=ROOT / ".state/lengths", help="folder of the models")
    parser.add_argument("--table", type=Path, default=ROOT / "docs/lengths.csv")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/lengths.svg")
    options = parser.parse_args()
    tables = []
    for form in FORMS:
        folder = options.work / f"{form.positions}-{form.words}-{options.updates}"
        if not (folder / "results/decode/test.hyp").exists():
            run(form, folder, options.updates)
        files = [folder / name for name in ("data/raw/test.en", "results/decode/test.hyp", "data/raw/test.de")]
        tables.append(scores(form.name, *read_aligned(*files)))
        pairs = open_split(folder / "data/binarized/train")
        longest = f"longest source {pairs.source.lengths.max()}, target {pairs.target.lengths.max()} tokens"
        print(f"{form.name}: {len(pairs):,} pairs; {longest}", flush=True)
    table = pd.concat(tables, ignore_index=True)
    table.to_csv(options.table, index=False, float_format="%.2f", lineterminator="\n")
    print(score_tables(table))
    draw(table, options.plot)


def run(form: Form, folder: Path, updates: int) -> None:
    """Train a form and translate the test set in its folder; forms with the same training pairs share their data."""
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(form, folder, updates)
    data = folder.with_name(f"data-{form.words}")
    if not data.exists():
        run_stages(DATA_STAGES, folder)
        (folder / "data").rename(data)
    if not (folder / "data").exists():
        (folder / "data").symlink_to(data.resolve(), target_is_directory=True)
    run_stages(("train", "average", "decode"), folder)


def write_settings(form: Form, folder: Path, updates: int) -> None:
    """Write a form's params.yaml and corpus: the recipe `synthetic` with other lengths, positions and updates."""
    train = {"updates": updates, "validate_every": updates}
    write_params(folder, PAIRS, clean={"max_words": form.words}, model={"positions": form.positions}, train=train)


def scores(form: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> pd.DataFrame:
    """Return a row for each group of source lengths that has a sentence, the shortest first.

    Returns:
        form, source_words (as "7-12"), beyond (longer than TRAINED_WORDS), sentences, bleu with its 95% interval (bleu_low, bleu_high),
        chrf, all in percent, and length_ratio of hypotheses to references in BLEU's tokens.
    """
    lines = pd.DataFrame({"group": [group_of(source) for source in sources], "hypothesis": hypotheses, "reference": references})
    rows = []
    for number, group in lines.groupby("group"):
        outputs, targets = group["hypothesis"].tolist(), group["reference"].tolist()
        bleu = BLEU().corpus_score(outputs, [targets])
        _, low, high = intervals({"BLEU": BLEU(force=True)}, outputs, targets)["BLEU"]
        first = GREATEST_WORDS[number - 1] + 1 if number else 1
        rows.append(
            {
                "form": form,
                "source_words": f"{first}-{GREATEST_WORDS[number]}",
                "beyond": first > TRAINED_WORDS,
                "sentences": len(group),
                "bleu": bleu.score,
                "bleu_low": low,
                "bleu_high": high,
                "chrf": CHRF().corpus_score(outputs, [targets]).score,
                "length_ratio": bleu.ratio,
            }
        )
    return pd.DataFrame(rows)


def group_of(source: str) -> int:
    """Return the number of the group that a source belongs to.

    Raises:
        ValueError: it is longer than the last group allows.
    """
    words = len(source.split())
    if words > GREATEST_WORDS[-1]:
        raise ValueError(f"a source of {words} words, but the longest group ends at {GREATEST_WORDS[-1]}")
    return bisect_left(GREATEST_WORDS, words)


def score_tables(table: pd.DataFrame) -> str:
    """Format BLEU, chrF2 and the ratio of lengths: a row for each form, a column for each group with its number of sentences."""
    labels = table["source_words"] + " (" + table["sentences"].astype(str) + ")"
    parts = []
    for column, digits in (("bleu", 1), ("chrf", 1), ("length_ratio", 2)):
        cells = table.assign(group=labels, text=table[column].map(f"{{:.{digits}f}}".format))
        wide = cells.pivot(index="form", columns="group", values="text").loc[table["form"].unique(), labels.unique()]
        parts.append(markdown(wide.rename_axis(column).reset_index()))
    return "\n\n".join(parts)


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw BLEU with its interval over the groups, a line for each form, with the lengths trained on shaded."""
    groups = table.drop_duplicates("source_words")
    with svg_figure(path) as (figure, (axes,)):
        axes.axvspan(-0.5, (~groups["beyond"]).sum() - 0.5, color="0.92", label="lengths trained on")
        for (form, rows), marker in zip(table.groupby("form", sort=False), "osD^", strict=False):
            # The interval of a bootstrap need not contain the score itself.
            errors = [(rows["bleu"] - rows["bleu_low"]).clip(lower=0), (rows["bleu_high"] - rows["bleu"]).clip(lower=0)]
            axes.errorbar(rows["source_words"], rows["bleu"], yerr=errors, marker=marker, capsize=3, label=form)
        axes.set(xlabel="words of the source sentence", ylabel="BLEU (generated text)", ylim=(0, 100), xlim=(-0.5, len(groups) - 0.5))
        axes.grid(axis="y", alpha=0.3)
        figure.legend(frameon=False, loc="outside right upper")


if __name__ == "__main__":
    main()
