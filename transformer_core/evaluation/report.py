"""The report of a run: one self-contained HTML file with its pictures, and one with all sentences of the test set.

All text from the data is escaped. A content security policy in the head forbids scripts and loading anything. The same `Report` gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_core.corpus.text import length_in_words
from transformer_core.corpus.trees import leaves, read_tree, repaired
from transformer_core.evaluation.attention_picture import attention_picture, fonts_of
from transformer_core.evaluation.brackets import differing
from transformer_core.evaluation.metrics import EXACT, Example, GroupScore, OutputShares, Scores
from transformer_core.evaluation.moses_bleu import COUNT_TITLES
from transformer_core.evaluation.pages import page
from transformer_core.evaluation.parsing import ParsingScores
from transformer_core.evaluation.verdict import VERDICT_PLACEHOLDER
from transformer_core.pictures.curves import length_charts, training_charts
from transformer_core.pictures.drawing import as_image
from transformer_core.pictures.trees import tree_figure

if TYPE_CHECKING:
    from transformer_core.evaluation.attention import AttentionMaps, Kind

# Number of examples shown of each rank; the others are folded away, and so are all that are exactly right.
EXAMPLES_SHOWN = 2
# A group of fewer sentences or words looks uncertain.
FEW = 30
# In percent: a score below the first, or a share of wrong outputs of at least the second, gets a red warning.
NEAR_ZERO, MANY_WRONG = 1.0, 5.0
# The sentence on each BLEU of Moses' tokens ends with the figures.
MOSES_BLEU = {
    "paper_bleu": "Only for comparison with the paper's Table 2: BLEU of Moses' tokens (of German, with compounds split at hyphens),",
    "multi30k_lower": "For comparison with papers on Multi30k: BLEU of lowercased Moses' tokens, without smoothing,",
}
# The name on the tile of each BLEU that a corpus asks for.
TILES = {"multi30k_lower": "Lowercased BLEU"}
# Heads in a row of a picture, and the number of pieces up to which so many fit.
HEADS_ACROSS, FEW_PIECES = 4, 14


@dataclass(frozen=True)
class Attended:
    """Attention maps of a sentence of the test set, given by its index from 0, and of the model's translation."""

    index: int
    maps: AttentionMaps


@dataclass(frozen=True)
class Lineage:
    """Inputs and software of the report.

    Attributes:
        report: commit, versions and so on of the process that made the report.
        training: the same of the process that trained the model, and its devices; empty if the model came from a cache.
        outputs: DVC's hash of each stage's output, from dvc.lock; empty without DVC.
    """

    report: Mapping[str, str]
    training: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class RunReport:
    """Content of the report of any task. Mappings are the documents of JSON files that the stages write.

    Attributes:
        manifest: the corpus: names, pairs, origin, licence.
        cleaning: numbers of pairs in, dropped and repaired by each rule, and out.
        model: the averaged model's config.json: architecture, vocabulary, training, checkpoints averaged.
        parameters: number of the model's parameters.
        settings: the sections of params.yaml.
        seconds: duration of each stage; None if its outputs came from a cache.
        cost: cost of these durations; None if there is no price.
        decoding: settings, speed, day and machine of decoding; older ones have neither day nor machine.
        updates: a row of numbers for each logged update.
        validation: a row of numbers for each validation.
        by_length: score of the test set by number of words of the source.
        examples: chosen sentences of the test set.
        sentence_scores: each sentence's own score in percent, chrF2 or F1.
        right: whether each sentence's output is exactly right: its reference, or a tree with the same brackets. chrF2 cannot tell: it
            ignores white space, and is 0 of two empty lines.
        sources: lines of the test set; `references` and `hypotheses` correspond line by line.
        attention: attention in one sentence, or the reason for showing none.
    """

    manifest: Mapping[str, Any]
    cleaning: Mapping[str, Any]
    model: Mapping[str, Any]
    parameters: int
    settings: Mapping[str, Mapping[str, Any]]
    seconds: Mapping[str, float | None]
    cost: float | None
    decoding: Mapping[str, Any]
    updates: Sequence[Mapping[str, float]]
    validation: Sequence[Mapping[str, float]]
    by_length: Sequence[GroupScore]
    examples: Sequence[Example]
    sentence_scores: Sequence[float]
    right: Sequence[bool]
    sources: Sequence[str]
    references: Sequence[str]
    hypotheses: Sequence[str]
    attention: Attended | str
    lineage: Lineage


@dataclass(frozen=True)
class Report(RunReport):
    """Content of the report of a translation model.

    Attributes:
        scores: scores by split; the headline shows "test".
        shares: shares of outputs of the test set that are wrong whatever the reference.
    """

    scores: Mapping[str, Scores]
    shares: OutputShares


@dataclass(frozen=True)
class ParsingReport(RunReport):
    """Content of the report of a parser: `references` are bracketed trees, `hypotheses` symbols (corpus/trees.py).

    Attributes:
        scores: scores by split; the headline shows "test".
    """

    scores: Mapping[str, ParsingScores]


def render(report: Report) -> str:
    """Return the report of a translation model as an HTML document."""
    return _rendered("report.html", "BLEU", report, moses_bleu=MOSES_BLEU, titles=COUNT_TITLES, tiles=TILES)


def render_parsing(report: ParsingReport) -> str:
    """Return the report of a parser as an HTML document, with drawings of each example's gold tree and the model's tree."""
    drawn = {}
    for example in report.examples:
        gold = read_tree(report.references[example.index])
        found = repaired(report.hypotheses[example.index], leaves(gold)).tree
        pairs = {"Gold tree": (gold, found), "The model's tree": (found, gold)}
        if example.score == 100:
            pairs = {"Gold tree and the model's": (gold, found)}
        drawn[example.index] = {title: as_image(tree_figure(tree, differing(tree, other)), title) for title, (tree, other) in pairs.items()}
    return _rendered("parsing.html", "F1", report, drawn=drawn)


def render_sentences(report: RunReport, metric: str) -> str:
    """Return a table of all sentences; `metric` is the name of the sentences' own scores, chrF2 or F1."""
    lengths = map(length_in_words, report.sources)
    rows = zip(report.right, report.sentence_scores, lengths, report.sources, report.references, report.hypotheses, strict=True)
    return page("sentences.html", manifest=report.manifest, metric=metric, rows=rows)


def _rendered(template: str, score: str, report: RunReport, **own: object) -> str:
    return page(
        template,
        report=report,
        place=VERDICT_PLACEHOLDER,
        charts=training_charts(report.updates, report.validation, score),
        length_charts=length_charts(report.cleaning),
        attention=[] if isinstance(report.attention, str) else layer_pictures(report.attention.maps),
        examples={rank: list(group) for rank, group in groupby(report.examples, key=lambda example: example.rank)},
        shown=EXAMPLES_SHOWN,
        exact_rank=EXACT,
        few=FEW,
        nothing=NEAR_ZERO,
        many=MANY_WRONG,
        exact=sum(report.right),
        **own,
    )


class LayerPicture(NamedTuple):
    """The heads of a layer as an HTML element; layers count from 1, as in the paper."""

    kind: Kind
    layer: int
    layers: int
    image: str


def layer_pictures(maps: AttentionMaps) -> list[LayerPicture]:
    """Draw all heads of the encoder's last layer but one, as the paper shows 5 of 6, and of the last attention to the source."""
    fonts = fonts_of(maps)
    across = HEADS_ACROSS if len(maps.source) <= FEW_PIECES else HEADS_ACROSS // 2
    pictures = []
    for kind in (kind for kind in maps.weights if kind != "decoder"):
        layers, heads = maps.weights[kind].shape[:2]
        layer = max(1, layers - 1) if kind == "encoder" else layers
        figure = attention_picture(maps, kind, [(layer, head) for head in range(1, heads + 1)], across, fonts)
        pictures.append(LayerPicture(kind, layer, layers, as_image(figure, f"Attention of layer {layer}, {heads} heads")))
    return pictures
