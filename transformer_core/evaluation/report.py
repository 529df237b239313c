"""The report of a run: one self-contained HTML file with its pictures, and one with all sentences of the test set.

All text from the data is escaped. A content security policy in the head forbids scripts and loading anything. The same `Report` gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformer_core.corpus.text import length_in_words, unit_of_length
from transformer_core.evaluation.diagnosis import fit, unread_source
from transformer_core.evaluation.examples import Example, GroupScore
from transformer_core.evaluation.pages import page
from transformer_core.evaluation.scoring import Comparison, Scores, Scoring
from transformer_core.evaluation.variety import collapse, in_words
from transformer_core.pictures.attention_maps import layer_pictures
from transformer_core.pictures.curves import length_charts, training_charts
from transformer_core.tasks import direction_of

if TYPE_CHECKING:
    from transformer_core.pictures.attention_maps import AttentionMaps


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
class Report:
    """Content of the report. Mappings are the documents of JSON files that the stages write.

    Attributes:
        model: the averaged model's config.json.
        parameters: number of the model's parameters.
        settings: the sections of params.yaml.
        seconds: duration of each stage; None if its outputs came from a cache.
        decoding: settings, speed, day and machine of decoding; older ones have neither day nor machine.
        updates: a row of numbers for each logged update, and `validation` for each validation.
        scores: scores by split; the headline shows "test".
        by_length: main score of the test set by number of words of the source.
        sentence_scores: each sentence's own score in percent.
        right: whether each sentence's output is exactly right; its own score cannot tell.
        sources: lines of the test set; `references` and `hypotheses` correspond line by line.
        attention: attention in one sentence, or the reason for showing none.
        gains: by test set the comparison with the model that the training started from, if it started from one.
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
    scores: Mapping[str, Scores]
    by_length: Sequence[GroupScore]
    examples: Sequence[Example]
    sentence_scores: Sequence[float]
    right: Sequence[bool]
    sources: Sequence[str]
    references: Sequence[str]
    hypotheses: Sequence[str]
    attention: Attended | str
    lineage: Lineage
    gains: Mapping[str, Comparison] = field(default_factory=dict)


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
    """Return a table of all sentences."""
    lengths = map(length_in_words, report.sources)
    rows = zip(report.right, report.sentence_scores, lengths, report.sources, report.references, report.hypotheses, strict=True)
    return page("sentences.html", manifest=report.manifest, scoring=scoring, unit=unit_of_length(report.sources), rows=rows)
