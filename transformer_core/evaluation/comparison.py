"""Comparison of two systems on the same sentences: scores, significance of their differences, and the sentences that differ most."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformer_core.evaluation.metrics import sentence_chrf
from transformer_core.evaluation.significance import RESAMPLES, SIGNIFICANT, Comparison, compare_scores

SHOWN = 5
FEW_LINES = 100


@dataclass(frozen=True)
class Sentence:
    """A sentence that one system translates better than the other: its line (from 1), and chrF2 of both translations in percent."""

    line: int
    chrf_a: float
    chrf_b: float
    source: str | None
    reference: str
    a: str
    b: str


@dataclass(frozen=True)
class SideBySide:
    """System B compared with system A: BLEU, chrF2 and TER; the sentences in which B gains most, and those in which it loses most."""

    lines: int
    scores: Sequence[Comparison]
    gains: Sequence[Sentence]
    losses: Sequence[Sentence]

    def document(self) -> dict[str, Any]:
        """Return the comparison as a JSON document."""
        scores = [{**asdict(one), "significant": one.significant} for one in self.scores]
        gains, losses = ([asdict(one) for one in some] for some in (self.gains, self.losses))
        return {"lines": self.lines, "scores": scores, "gains": gains, "losses": losses}


def side_by_side(a: Sequence[str], b: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None) -> SideBySide:
    """Score both systems and find the sentences with the largest gains and losses of chrF2.

    Raises:
        ValueError: `a`, `b` and `references` differ in length or are empty.
    """
    return SideBySide(len(references), compare_scores(a, b, references), *most_different(a, b, references, sources))


def most_different(
    a: Sequence[str], b: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None
) -> tuple[list[Sentence], list[Sentence]]:
    """Return the `SHOWN` sentences in which B gains most chrF2, and those in which it loses most."""
    chrf_a, chrf_b = sentence_chrf(a, references), sentence_chrf(b, references)
    by_gain = sorted(range(len(references)), key=lambda index: chrf_a[index] - chrf_b[index])

    def sentence(index: int) -> Sentence:
        source = None if sources is None else sources[index]
        return Sentence(index + 1, chrf_a[index], chrf_b[index], source, references[index], a[index], b[index])

    gains = [sentence(index) for index in by_gain[:SHOWN] if chrf_b[index] > chrf_a[index]]
    losses = [sentence(index) for index in by_gain[: -SHOWN - 1 : -1] if chrf_b[index] < chrf_a[index]]
    return gains, losses


def scores_table(compared: SideBySide) -> str:
    """Format the scores for a terminal, with significant differences marked."""
    rows = [f"{f'{compared.lines:,} lines':<16}{'A':>9}{'B':>9}{'B - A':>9}{'p-value':>10}"]
    for one in compared.scores:
        mark = " *" if one.significant else ""
        rows.append(f"{one.metric:<16}{one.baseline:>9.2f}{one.candidate:>9.2f}{one.difference:>+9.2f}{one.p_value:>10.4f}{mark}")
    rows.append(f"* p < {SIGNIFICANT} by paired bootstrap, {RESAMPLES:,} resamples: more than chance. Of TER the lower is the better.")
    if compared.lines < FEW_LINES:
        rows.append(f"With fewer than {FEW_LINES} lines a p-value says little.")
    return "\n".join([*rows, *(f"{one.metric} is {one.signature}" for one in compared.scores)])


def sentences_text(compared: SideBySide) -> str:
    """Format the sentences that differ most for a terminal."""
    blocks = []
    for heading, sentences in (("B better than A by most chrF2", compared.gains), ("A better than B by most chrF2", compared.losses)):
        blocks.append(f"{heading}:" if sentences else f"{heading}: no sentence")
        blocks += [_block(sentence) for sentence in sentences]
    return "\n\n".join(blocks)


def _block(sentence: Sentence) -> str:
    texts: Mapping[str, str | None] = {"source": sentence.source, "reference": sentence.reference, "A": sentence.a, "B": sentence.b}
    shown = [f"  {name:<11}{text}" for name, text in texts.items() if text is not None]
    return "\n".join([f"line {sentence.line:,}: chrF2 {sentence.chrf_a:.1f} in A, {sentence.chrf_b:.1f} in B", *shown])
