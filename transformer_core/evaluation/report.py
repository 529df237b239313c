"""The report of a run: one HTML file that needs nothing else, with charts and figures as SVG drawn from the numbers.

All text from the data is escaped; the page holds no script and forbids loading anything (a content security policy in its head).
The same `Report` gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from transformer_core.corpus.trees import leaves, read_tree, repaired
from transformer_core.evaluation.attention_figures import (
    LayerFigures,
    WordFigure,
    cross_figures,
    encoder_figures,
    encoder_words,
    opacity,
    shown_layer,
    word_figure,
)
from transformer_core.evaluation.charts import length_charts, training_charts
from transformer_core.evaluation.figures import COLOURS, SANS
from transformer_core.evaluation.metrics import Example, GroupScore, OutputShares, Scores
from transformer_core.evaluation.parsing import ParsingScores
from transformer_core.evaluation.tree_figures import tree_figure
from transformer_core.evaluation.words import choose_word

if TYPE_CHECKING:
    from transformer_core.evaluation.attention import AttentionMaps

# Of each rank (best, median, worst); the others are folded away.
EXAMPLES_SHOWN = 3
# On the scale of the attention figures.
WEIGHTS_NAMED = (0.05, 0.1, 0.25, 0.5, 1)


@dataclass(frozen=True)
class Attended:
    """Attention in one sentence of the test set, by its place from 0, while the model writes its translation."""

    index: int
    maps: AttentionMaps


@dataclass(frozen=True)
class Lineage:
    """Inputs and software of the report.

    Args:
        report: commit, versions and so on where the report was made.
        training: the same and the devices where the model was trained; empty where that came from a cache.
        outputs: the hash that DVC knows each stage's output by, as dvc.lock has it; empty outside of DVC.
    """

    report: Mapping[str, str]
    training: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class Run:
    """Content of a report that every task has. The documents are those of the JSON files that the stages write.

    Args:
        manifest: the corpus: names, pairs, origin, licence, synthetic or not.
        cleaning: pairs in, dropped and repaired by each rule, out.
        model: the averaged model's config.json: architecture, vocabulary, training, checkpoints averaged.
        parameters: how many numbers the model has learnt.
        settings: the sections of params.yaml.
        seconds: how long each stage took; None where its outputs came from a cache.
        decoding: the settings and speed of decoding.
        updates: a row of numbers for each logged update.
        validation: a row of numbers for each validation.
        by_length: the score of the test set by words of the source.
        by_phenomenon: the score of the test set by phenomenon, empty where the corpus has no labels.
        examples: the chosen sentences of the test set.
        sources: the whole test set; with `references` and `hypotheses`, line by line.
        attention: in one sentence, or why there is none to show.
    """

    manifest: Mapping[str, Any]
    cleaning: Mapping[str, Any]
    model: Mapping[str, Any]
    parameters: int
    settings: Mapping[str, Mapping[str, Any]]
    seconds: Mapping[str, float | None]
    decoding: Mapping[str, Any]
    updates: Sequence[Mapping[str, float]]
    validation: Sequence[Mapping[str, float]]
    by_length: Sequence[GroupScore]
    by_phenomenon: Sequence[GroupScore]
    examples: Sequence[Example]
    sources: Sequence[str]
    references: Sequence[str]
    hypotheses: Sequence[str]
    attention: Attended | str
    lineage: Lineage


@dataclass(frozen=True)
class Report(Run):
    """All that the report of a translation shows.

    Args:
        scores: by split; "test" makes the headline.
        shares: of outputs of the test set that are wrong whatever the reference.
    """

    scores: Mapping[str, Scores]
    shares: OutputShares


@dataclass(frozen=True)
class ParsingReport(Run):
    """All that the report of a parser shows: `references` are bracketed trees, `hypotheses` symbols (corpus/trees.py).

    Args:
        scores: by split; "test" makes the headline.
    """

    scores: Mapping[str, ParsingScores]


def render(report: Report) -> str:
    """The report of a translation as one HTML document."""
    return _rendered("report.html", "BLEU", report, differences=differences)


def render_parsing(report: ParsingReport) -> str:
    """The report of a parser as one HTML document; of each example the gold tree and the model's are drawn."""
    drawn = {}
    for example in report.examples:
        gold = read_tree(report.references[example.index])
        found = repaired(report.hypotheses[example.index], leaves(gold)).tree
        both, same = {"Gold tree": (gold, found), "The model's tree": (found, gold)}, {"Gold tree and the model's": (gold, found)}
        drawn[example.index] = {title: tree_figure(*pair, title) for title, pair in (both if example.score < 100 else same).items()}
    return _rendered("parsing.html", "F1", report, drawn=drawn)


def _rendered(template: str, score: str, report: Run, **own: object) -> str:
    templates = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    templates.loader = PackageLoader("transformer_core.evaluation")
    templates.filters.update(grouped=grouped, duration=duration, words=words, setting=setting)
    layers, word = ([], None) if isinstance(report.attention, str) else looked_at(report.attention.maps, report.manifest["source"])
    return templates.get_template(template).render(
        report=report,
        colours=COLOURS,
        sans=SANS,
        charts=training_charts(report.updates, report.validation, score),
        length_charts=length_charts(report.cleaning),
        attention=layers,
        word=word,
        scale=[(weight, opacity(weight)) for weight in WEIGHTS_NAMED],
        examples=[(rank, list(group)) for rank, group in groupby(report.examples, key=lambda example: example.rank)],
        shown=EXAMPLES_SHOWN,
        **own,
    )


def looked_at(maps: AttentionMaps, language: str) -> tuple[list[LayerFigures], tuple[WordFigure, str] | None]:
    """The layers to look at; what one word of the source attends to, and why it is that word, where the encoder has attention."""
    if "encoder" not in maps.weights:
        return cross_figures(maps), None
    layer = shown_layer(len(maps.weights["encoder"]))
    place, why = choose_word(*encoder_words(maps, layer), language)
    return [encoder_figures(maps), *cross_figures(maps)], (word_figure(maps, place, layer), why)


def differences(text: str, other: str) -> list[tuple[str, bool]]:
    """The text in runs, each with whether `other` differs there; joined they are the text.

    Words are compared, or characters where neither text has a space, as in Chinese.
    """
    space = " " if " " in text + other else ""
    own, others = (one.split(" ") if space else list(one) for one in (text, other))
    blocks = SequenceMatcher(a=own, b=others, autojunk=False).get_opcodes()
    runs = [(space.join(own[start:end]), kind != "equal") for kind, start, end, _, _ in blocks if end > start]
    return [part for run in runs for part in ((space, False), run)][1:]


def grouped(number: float) -> str:
    """A whole number with its thousands separated: 28,973."""
    return f"{number:,.0f}"


def duration(seconds: float) -> str:
    """A time in words: 4.2 s, 4 min 10 s, 1 h 02 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def words(key: str) -> str:
    """A key as one reads it: "control_characters" becomes "control characters"."""
    return key.replace("_", " ")


def setting(value: Any) -> str:
    """A value as params.yaml has it; "none" for none."""
    if value is None or value == []:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
