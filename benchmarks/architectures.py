"""Transformer, convolutional and recurrent models beside each other: ``python benchmarks/architectures.py``.

Each recipe runs in a clone of this repository (of its last commit) under --work, with this one's DVC cache, so that all share the data;
what has run already is a cache hit, with the speed it had then. Prints a Markdown table and draws BLEU by sentence length into --plot.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
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


@dataclass(frozen=True)
class Outcome:
    """What one recipe came to.

    Attributes:
        training: the metrics that the training wrote.
        bleu: of the test set.
        signature: sacreBLEU's.
        by_length: BLEU by words of the source, in ascending order; the groups' sizes beside it.
    """

    name: str
    training: dict[str, float]
    bleu: float
    signature: str
    by_length: dict[str, float]
    sentences: dict[str, int]


def main() -> None:
    """Run what has not run, then print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=ROOT / ".state/architectures", help="folder of the clones")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs/bleu-by-length.svg")
    options = parser.parse_args()
    for recipe in RECIPES:
        run(recipe, options.work / recipe)
    outcomes = [outcome(name, options.work / recipe) for recipe, name in RECIPES.items()]
    print(table(outcomes))
    draw(outcomes, options.plot)


def run(recipe: str, clone: Path) -> None:
    """Bring the clone to this repository's commit, put the recipe there and run its stages up to the scores."""
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    for command in (["fetch"], ["reset", "--hard", "origin/HEAD"]):  # The run before has changed params.yaml and dvc.lock.
        subprocess.run(["git", *command, "--quiet"], cwd=clone, check=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in (
        ["dvc", "cache", "dir", "--local", str(ROOT / ".dvc/cache")],
        [sys.executable, "-m", "transformer_core.cli", "recipe", recipe, "--force"],
        ["dvc", "repro", "evaluate"],
    ):
        subprocess.run(command, cwd=clone, env=environment, check=True, stdout=sys.stderr)


def outcome(name: str, clone: Path) -> Outcome:
    """Read what the run in a clone has left."""
    scores = json.loads((clone / "results/metrics.json").read_text(encoding="utf-8"))
    with (clone / "results/by_length.csv").open(encoding="utf-8") as file:
        groups = list(csv.DictReader(file))
    return Outcome(
        name=name,
        training=json.loads((clone / "results/training/metrics.json").read_text(encoding="utf-8")),
        bleu=scores["bleu"],
        signature=scores["signature"],
        by_length={group["source_words"]: float(group["score"]) for group in groups},
        sentences={group["source_words"]: int(group["sentences"]) for group in groups},
    )


def table(outcomes: list[Outcome]) -> str:
    """Markdown: a row a model, a column a group of lengths."""
    first = outcomes[0]
    head = ["model", "parameters", "target tok/s", "minutes", "valid PPL", "test BLEU"]
    head += [f"{words} words ({first.sentences[words]})" for words in first.by_length]
    rows = [head, ["---"] * len(head)]
    for model in outcomes:
        training = model.training
        figures = [f"{training['parameters']:,}", f"{training['tokens_per_second']:,}", f"{training['minutes']:.1f}"]
        figures += [f"{training['valid_perplexity']:.2f}", f"{model.bleu:.1f}"]
        rows.append([model.name, *figures, *(f"{bleu:.1f}" for bleu in model.by_length.values())])
    return "\n".join(["| " + " | ".join(row) + " |" for row in rows] + ["", f"BLEU is {first.signature}."])


def draw(outcomes: list[Outcome], path: Path) -> None:
    """One line a model: BLEU over the groups of source length."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bleu-by-length"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.2), layout="constrained")
    for model, marker in zip(outcomes, "osD^vPX*<>", strict=True):
        axes.plot(list(model.by_length), list(model.by_length.values()), marker=marker, label=model.name)
    axes.set(xlabel="words of the source sentence", ylabel="BLEU", ylim=(0, 100))
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right upper")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
