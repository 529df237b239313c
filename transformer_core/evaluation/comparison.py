"""Comparison of two systems on the same sentences: scores, significance of their differences, and the sentences that differ most."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from transformer_core.evaluation.scoring import SIGNIFICANT, Comparison, Scoring
from transformer_core.evaluation.significance import TEST

SHOWN = 5
FEW_LINES = 100
# The terminal would act on them: a carriage return hides the beginning of its line.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Sentence(NamedTuple):
    """A sentence for which one system's output is better than the other's: its line (from 1), and the scores of both in percent."""

    line: int
    score_a: float
    score_b: float
    source: str | None
    reference: str
    a: str
    b: str


class SideBySide(NamedTuple):
    """System B compared with system A: scores, the sentences in which B gains most, and those in which it loses most."""

    scoring: Scoring
    lines: int
    scores: Sequence[Comparison]
    gains: Sequence[Sentence]
    losses: Sequence[Sentence]

    @property
    def notes(self) -> Iterator[str]:
        """What to know of the p-values: how they were computed, which score is better lower, and whether the lines are few."""
        yield f"by {TEST}: more than chance."
        yield from (f"A lower {score.name} is better." for score in self.scoring.scores if score.lower_is_better)
        if self.lines < FEW_LINES:
            yield f"With fewer than {FEW_LINES} lines a p-value says little."

    def document(self) -> dict[str, Any]:
        """Return the comparison as a JSON document."""
        names = ("baseline", "candidate", "difference", "p_value", "signature", "significant")
        scores = [{"metric": found.score.name} | {name: getattr(found, name) for name in names} for found in self.scores]
        gains, losses = ([sentence._asdict() for sentence in side] for side in (self.gains, self.losses))
        return {"lines": self.lines, "scores": scores, "of_sentences": self.scoring.of_sentences, "gains": gains, "losses": losses}


def side_by_side(
    scoring: Scoring, a: Sequence[str], b: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
) -> SideBySide:
    """Score both systems and find the `SHOWN` sentences with the largest gains, and those with the largest losses.

    Raises `ValueError`: `a`, `b` and `references` differ in length or are empty, or a reference cannot be scored.
    """
    a, b = (list(map(scoring.as_scored, side)) for side in (a, b))
    scores = list(scoring.comparisons(a, b, references))
    scores_a, scores_b = (scoring.sentence_scores(side, references) for side in (a, b))
    by_gain = sorted(range(len(references)), key=lambda index: scores_a[index] - scores_b[index])

    def sentence(index: int) -> Sentence:
        source, reference = None if sources is None else sources[index], references[index]
        outputs = (scoring.as_shown(side[index], reference) for side in (a, b))
        return Sentence(index + 1, scores_a[index], scores_b[index], source, reference, *outputs)

    gains = [sentence(index) for index in by_gain[:SHOWN] if scores_b[index] > scores_a[index]]
    losses = [sentence(index) for index in by_gain[: -SHOWN - 1 : -1] if scores_b[index] < scores_a[index]]
    return SideBySide(scoring, len(references), scores, gains, losses)


def comparison_text(compared: SideBySide) -> str:
    """Format the comparison for a terminal, with significant differences marked and control characters escaped."""
    rows = [f"{f'{compared.lines:,} lines':<16}{'A':>9}{'B':>9}{'B - A':>9}{'p-value':>10}"]
    for found in compared.scores:
        tested = f"{found.p_value:>10.4f}{' *' if found.significant else ''}"
        rows.append(f"{found.score.name:<16}{found.baseline:>9.2f}{found.candidate:>9.2f}{found.difference:>+9.2f}{tested}")
    note, *others = compared.notes
    rows += [f"* p < {SIGNIFICANT} {note}", *others]
    blocks = ["\n".join([*rows, *(f"{found.score.name}: {found.signature}" for found in compared.scores)])]
    score = compared.scoring.of_sentences
    for better, worse, sentences in (("B", "A", compared.gains), ("A", "B", compared.losses)):
        blocks.append(f"Largest gains of {better} over {worse} by {score}:{'' if sentences else ' none'}")
        blocks += [_block(sentence, score) for sentence in sentences]
    return "\n\n".join(blocks)


def _block(sentence: Sentence, score: str) -> str:
    texts = {"source": sentence.source, "reference": sentence.reference, "A": sentence.a, "B": sentence.b}
    shown = [f"  {name:<11}{text}" for name, text in texts.items() if text is not None]
    shown = [_CONTROL_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), line) for line in shown]
    return "\n".join([f"line {sentence.line:,}: {score} {sentence.score_a:.1f} in A, {sentence.score_b:.1f} in B", *shown])
