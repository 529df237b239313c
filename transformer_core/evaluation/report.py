"""The report of a run: one self-contained HTML file with its pictures, and one with all sentences of the test set.

All text from the data is escaped. A content security policy in the head forbids scripts and loading anything. The same `Report` gives the
same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformer_core.corpus.text import length_in_words, unit_of_length
from transformer_core.evaluation.diagnosis import fit, unread_source
from transformer_core.evaluation.examples import GroupScore
from transformer_core.evaluation.pages import page
from transformer_core.evaluation.scoring import Comparison, Scores, Scoring, untagged
from transformer_core.evaluation.variety import collapse, in_words
from transformer_core.pictures.attention_maps import AttentionMaps, layer_pictures
from transformer_core.pictures.curves import length_charts, training_charts
from transformer_core.tasks import direction_of


@dataclass(frozen=True)
class Attended:
    """Attention maps of a sentence of the test set, given by its index from 0, and of the model's translation."""

    index: int
    maps: AttentionMaps


class Lineage(NamedTuple):
    """Inputs and software of the report."""

    report: Mapping[str, str]  # Commit, versions and so on of the process that made the report.
    training: Mapping[str, str]  # The same of the process that trained the model, and its devices; empty if the model came from a cache.
    outputs: Mapping[str, str]  # DVC's hash of each stage's output, from dvc.lock; empty without DVC.


@dataclass(frozen=True)
class Report:
    """Content of the report. Mappings are the documents of JSON files that the stages write."""

    manifest: Mapping[str, Any]
    cleaning: Mapping[str, Any]
    model: Mapping[str, Any]  # The averaged model's config.json.
    parameters: int  # Number of the model's parameters.
    settings: Mapping[str, Mapping[str, Any]]  # The sections of params.yaml.
    seconds: Mapping[str, float | None]  # Duration of each stage; None if its outputs came from a cache.
    decoding: Mapping[str, Any]  # Settings, speed, day and machine of decoding; older ones have neither day nor machine.
    updates: Sequence[Mapping[str, float]]  # A row of numbers for each logged update, and `validation` for each validation.
    validation: Sequence[Mapping[str, float]]
    scores: Mapping[str, Scores]  # Scores by split; the headline shows "test".
    by_length: Sequence[GroupScore]  # Main score of the test set by number of words of the source.
    examples: Sequence[int]  # Indices of sentences of the test set.
    sentence_scores: Sequence[float]  # Each sentence's own score in percent.
    right: Sequence[bool]  # Whether each sentence's output is exactly right; its own score cannot tell.
    sources: Sequence[str]  # Lines of the test set; `references` and `hypotheses` correspond line by line.
    references: Sequence[str]
    hypotheses: Sequence[str]
    attention: Attended | str  # Attention in one sentence, or the reason for showing none.
    lineage: Lineage
    # By test set the comparison with the model that the training started from, if it started from one.
    gains: Mapping[str, Comparison] = field(default_factory=dict)
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # `price` and `kwh` of stages, where they are known.


def render(report: Report, scoring: Scoring) -> str:
    """Return the report as an HTML document."""
    test, unit = report.scores["test"], unit_of_length(report.sources)
    units = {report.manifest["source"]: unit, report.manifest["target"]: unit_of_length(report.references)}
    return page(
        f"{scoring.task.name}.html",
        scoring.package,
        report=report,
        direction=direction_of(report.manifest),
        scoring=scoring,
        test=test,
        score=scoring.task.score,
        main_score=test.values[scoring.task.key],
        variety=in_words(test.parts),
        warnings=[collapse(test.parts), *(unread_source(row, 0) for row in report.validation[-1:])],
        fit=fit(report.updates, report.validation),
        charts=training_charts(report.updates, report.validation, scoring.task.score),
        unit=unit,
        length_charts=length_charts(report.cleaning, units),
        attention=[] if isinstance(report.attention, str) else layer_pictures(report.attention.maps),
        exact=sum(report.right),
    )


def render_sentences(report: Report, scoring: Scoring) -> str:
    lengths = map(length_in_words, untagged(report.sources))
    rows = zip(report.right, report.sentence_scores, lengths, report.sources, report.references, report.hypotheses, strict=True)
    return page("sentences.html", manifest=report.manifest, scoring=scoring, unit=unit_of_length(report.sources), rows=rows)
