"""Sentences longer than those trained on (paper 3.5), with each form of positions: ``python benchmarks/lengths.py``.

The generated corpus, cleaned to pairs of at most TRAINED_WORDS words on a side; the test set keeps its lengths. Sinusoidal, learned and no
positions are trained on it with the same updates, and sinusoids once more on pairs of all lengths: its scores show how hard long sentences
are where nothing is extrapolated. Stages run as `dvc repro` runs them, each form in a folder of its own under --work; a form whose
translations are there is not run again. Writes BLEU and chrF2 by words of the source into --table and draws BLEU into --plot.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transformer_core.corpus.binary import open_split
from transformer_core.evaluation.metrics import read_aligned
from transformer_core.evaluation.significance import bleu_interval
from transformer_core.recipes import read

ROOT = Path(__file__).parents[1]
DATA_STAGES, MODEL_STAGES = ("download", "clean", "bpe", "binarize"), ("train", "average", "decode")
PAIRS = {"train": 100_000, "valid": 200, "test": 4_000}
TRAINED_WORDS = 12  # Of either side: half of the generated pairs are within it.
ALL_WORDS = 100
GREATEST_WORDS = (6, TRAINED_WORDS, 16, 20, 30, 40, 60)  # Of the source, of each group; the grammar makes none longer than the last.


@dataclass(frozen=True)
class Form:
    """A model of the comparison: its positions, and most words on a side of a training pair."""

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
    """Run what has not run, then score, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        print(f"{form.name}: {trained_on(folder)}", flush=True)
    table = pd.concat(tables, ignore_index=True)
    table.to_csv(options.table, index=False, float_format="%.2f", lineterminator="\n")
    print(markdown(table))
    draw(table, options.plot)


def run(form: Form, folder: Path, updates: int) -> None:
    """Train a form and translate the test set in its folder; forms of the same training pairs share their data."""
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(form, folder, updates)
    made = folder.with_name(f"data-{form.words}")
    if not made.exists():
        run_stages(DATA_STAGES, folder)
        (folder / "data").rename(made)
    if not (folder / "data").exists():
        (folder / "data").symlink_to(made.resolve(), target_is_directory=True)
    run_stages(MODEL_STAGES, folder)


def write_settings(form: Form, folder: Path, updates: int) -> None:
    """params.yaml and the corpus that it names: the recipe `synthetic` but for lengths, positions and updates."""
    yaml = YAML(typ="safe", pure=True)
    params: dict[str, Any] = yaml.load(read("synthetic"))
    params["download"]["corpus"] = "lengths"
    params["clean"]["max_words"] = form.words
    params["model"]["positions"] = form.positions
    params["train"] |= {"updates": updates, "validate_every": updates}
    yaml.dump(params, folder / "params.yaml")
    splits = {split: [{"synthetic": {"pairs": pairs, "seed": 1}}] for split, pairs in PAIRS.items()}
    entry = {"name": "lengths", "languages": ["en", "de"], "licence": None, "note": "", "synthetic": True, "splits": splits}
    (folder / "corpora").mkdir(exist_ok=True)
    yaml.dump(entry, folder / "corpora/lengths.yaml")


def run_stages(stages: Sequence[str], folder: Path) -> None:
    """Run stages of the pipeline, each in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for stage in stages:
        subprocess.run([sys.executable, "-m", f"flows.stages.{stage}"], cwd=folder, env=environment, check=True, stdout=sys.stderr)


def trained_on(folder: Path) -> str:
    """How many pairs the model was trained on, and how long the longest side is."""
    pairs = open_split(folder / "data/binarized", "train")
    return f"{len(pairs):,} pairs; longest source {pairs.source.lengths.max()}, target {pairs.target.lengths.max()} tokens"


def scores(form: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> pd.DataFrame:
    """A row for each group of source lengths that has a sentence, the shortest first.

    Returns:
        form, source_words (as "7-12"), beyond (longer than TRAINED_WORDS), sentences, bleu with its 95% interval (bleu_low, bleu_high),
        chrf, all in percent, and length_ratio of hypotheses to references in BLEU's tokens.
    """
    lines = pd.DataFrame({"group": [group_of(source) for source in sources], "hypothesis": hypotheses, "reference": references})
    rows = []
    for number, group in lines.groupby("group"):
        outputs, right = group["hypothesis"].tolist(), group["reference"].tolist()
        bleu = BLEU().corpus_score(outputs, [right])
        low, high = bleu_interval(outputs, right)
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
                "chrf": CHRF().corpus_score(outputs, [right]).score,
                "length_ratio": bleu.ratio,
            }
        )
    return pd.DataFrame(rows)


def group_of(source: str) -> int:
    """The number of the group that a source belongs to.

    Raises:
        ValueError: it is longer than the last group allows.
    """
    words = len(source.split())
    for number, greatest in enumerate(GREATEST_WORDS):
        if words <= greatest:
            return number
    raise ValueError(f"a source of {words} words, but the longest group ends at {GREATEST_WORDS[-1]}")


def markdown(table: pd.DataFrame) -> str:
    """Three tables, BLEU, chrF2 and the ratio of lengths: a row a form, a column a group, with its number of sentences."""
    labels = table["source_words"] + " (" + table["sentences"].astype(str) + ")"
    parts = []
    for column, digits in (("bleu", 1), ("chrf", 1), ("length_ratio", 2)):
        wide = table.assign(group=labels).pivot(index="form", columns="group", values=column)
        wide = wide.loc[table["form"].unique(), labels.unique()]
        rows = [[column, *wide.columns], ["---"] * (1 + len(wide.columns))]
        rows += [
            [str(form), *(f"{value:.{digits}f}" for value in values)] for form, values in zip(wide.index, wide.to_numpy(), strict=True)
        ]
        parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join(parts)


def draw(table: pd.DataFrame, path: Path) -> None:
    """A line a form: BLEU with its interval over the groups, the trained ones shaded."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "lengths"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.2), layout="constrained")
    groups = table.drop_duplicates("source_words")
    axes.axvspan(-0.5, (~groups["beyond"]).sum() - 0.5, color="0.92", label="lengths trained on")
    for (form, rows), marker in zip(table.groupby("form", sort=False), "osD^", strict=False):
        # A bootstrap's interval need not hold the score itself.
        errors = [(rows["bleu"] - rows["bleu_low"]).clip(lower=0), (rows["bleu_high"] - rows["bleu"]).clip(lower=0)]
        axes.errorbar(rows["source_words"], rows["bleu"], yerr=errors, marker=marker, capsize=3, label=form)
    axes.set(xlabel="words of the source sentence", ylabel="BLEU (generated text)", ylim=(0, 100), xlim=(-0.5, len(groups) - 0.5))
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right upper")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
