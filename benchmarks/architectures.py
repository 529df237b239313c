"""Transformer, convolutional and recurrent models compared: ``python benchmarks/architectures.py``.

Each recipe runs in a clone of this repository (at its last commit) under --work. The clones use this repository's DVC cache, so they share
the data, and a finished run is a cache hit with its original speed. Prints a Markdown table and draws BLEU by sentence length into --plot.
"""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
from common import ROOT, command_line, markdown, svg_figure

from transformer_core.files import read_json

RECIPES = {
    "synthetic": "Transformer",
    "synthetic-convolutional": "convolutional",
    "synthetic-recurrent-additive": "recurrent, additive attention",
    "synthetic-recurrent-dot": "recurrent, dot attention",
    "synthetic-recurrent": "recurrent, fixed vector",
    "synthetic-recurrent-bahdanau": "Bahdanau et al. 2015",
    "synthetic-recurrent-luong": "Luong et al. 2015",
    "synthetic-recurrent-cho": "Cho et al. 2014",
    "synthetic-recurrent-forward": "fixed vector, one direction",
    "synthetic-recurrent-reversed": "the same, source reversed",
}


def main() -> None:
    """Run the recipes that have no result yet, then print and draw."""
    parser = command_line(__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / ".state/architectures", help="folder of the clones")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/bleu-by-length.svg")
    options = parser.parse_args()
    clones = {name: options.work / recipe for recipe, name in RECIPES.items()}
    for clone in clones.values():
        run(clone.name, clone)
    groups = {name: pd.read_csv(clone / "results/by_length.csv") for name, clone in clones.items()}
    print(markdown(pd.DataFrame([figures(name, clone, groups[name]) for name, clone in clones.items()])))
    print(f"\nBLEU is {read_json(clones['Transformer'] / 'results/scores.json')['signature']}.")
    draw(groups, options.plot)


def run(recipe: str, clone: Path) -> None:
    """Update the clone to this repository's commit, write the recipe into it and run its stages up to the scores."""
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    for command in (["fetch"], ["reset", "--hard", "origin/HEAD"]):  # The last run has changed params.yaml and dvc.lock.
        subprocess.run(["git", *command, "--quiet"], cwd=clone, check=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (
        ["dvc", "cache", "dir", "--local", str(ROOT / ".dvc/cache")],
        [sys.executable, "-m", "transformer_core.cli", "recipe", recipe, "--force"],
        ["dvc", "repro", "evaluate"],
    ):
        subprocess.run(command, cwd=clone, env=environment, check=True, stdout=sys.stderr)


def figures(name: str, clone: Path, groups: pd.DataFrame) -> dict[str, str]:
    """Return a model's row of the table, with BLEU of each group of source lengths (number of sentences)."""
    training = read_json(clone / "results/training/metrics.json")
    by_length = {f"{group.source_words} words ({group.sentences})": f"{group.score:.1f}" for group in groups.itertuples()}
    return {
        "model": name,
        "parameters": f"{training['parameters']:,}",
        "target tok/s": f"{training['tokens_per_second']:,}",
        "minutes": f"{training['minutes']:.1f}",
        "valid PPL": f"{training['valid_perplexity']:.2f}",
        "test BLEU": f"{read_json(clone / 'results/scores.json')['bleu']:.1f}",
        **by_length,
    }


def draw(groups: dict[str, pd.DataFrame], path: Path) -> None:
    """Draw BLEU over the groups of source lengths, a line for each model."""
    with svg_figure(path) as (figure, (axes,)):
        for (name, own), marker in zip(groups.items(), "osD^vPX*<>", strict=True):
            axes.plot(own["source_words"], own["score"], marker=marker, label=name)
        axes.set(xlabel="words of the source sentence", ylabel="BLEU", ylim=(0, 100))
        axes.grid(axis="y", alpha=0.3)
        figure.legend(frameon=False, loc="outside right upper")


if __name__ == "__main__":
    main()
