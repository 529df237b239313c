"""Comparison of two systems on the same sentences: scores, significance of their differences, and the sentences that differ most."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformer_core.corpus.trees import bracketed, leaves, linearised, read_tree, repaired
from transformer_core.evaluation.bleu import as_outputs
from transformer_core.evaluation.metrics import sentence_chrf
from transformer_core.evaluation.parsing import compare_parsers, sentence_f1
from transformer_core.evaluation.significance import RESAMPLES, SIGNIFICANT, Comparison, compare_scores

SHOWN = 5
FEW_LINES = 100
# The terminal would act on them: a carriage return hides the beginning of its line.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Sentence:
    """A sentence for which one system's output is better than the other's: its line (from 1), and the scores of both in percent."""

    line: int
    score_a: float
    score_b: float
    source: str | None
    reference: str
    a: str
    b: str


@dataclass(frozen=True)
class SideBySide:
    """System B compared with system A: scores, the sentences in which B gains most, and those in which it loses most.

    Attributes:
        scores: BLEU, chrF2 and TER of translations, F1 of parses.
        method: how the p-values were computed, in words.
        of_sentences: name of the score of a sentence, chrF2 or F1.
    """

    lines: int
    scores: Sequence[Comparison]
    method: str
    of_sentences: str
    gains: Sequence[Sentence]
    losses: Sequence[Sentence]

    def document(self) -> dict[str, Any]:
        """Return the comparison as a JSON document."""
        scores = [{**asdict(one), "significant": one.significant} for one in self.scores]
        gains, losses = ([asdict(one) for one in some] for some in (self.gains, self.losses))
        return {"lines": self.lines, "scores": scores, "of_sentences": self.of_sentences, "gains": gains, "losses": losses}


def side_by_side(
    a: Sequence[str], b: Sequence[str], references: Sequence[str], sources: Sequence[str] | None = None, trees: bool = False
) -> SideBySide:
    """Score both systems and find the `SHOWN` sentences with the largest gains, and those with the largest losses.

    Args:
        trees: the outputs are those of parsers, as symbols or as trees in brackets, and the references trees in brackets.

    Raises:
        ValueError: `a`, `b` and `references` differ in length or are empty, or a reference is no tree where `trees`.
    """
    if trees:
        a, b = ([_as_symbols(line) for line in side] for side in (a, b))
        scores, of_sentences = [compare_parsers(a, b, references)], "F1"
        scores_a, scores_b = sentence_f1(a, references), sentence_f1(b, references)
        method = f"by approximate randomisation, {RESAMPLES:,} trials: more than chance."
    else:
        scores, of_sentences, (expected, _) = compare_scores(a, b, references), "chrF2", as_outputs(references)
        scores_a, scores_b = sentence_chrf(a, expected), sentence_chrf(b, expected)
        method = f"by paired bootstrap, {RESAMPLES:,} resamples: more than chance. A lower TER is better."
    by_gain = sorted(range(len(references)), key=lambda index: scores_a[index] - scores_b[index])

    def shown(output: str, reference: str) -> str:
        return bracketed(repaired(output, leaves(read_tree(reference))).tree) if trees else output

    def sentence(index: int) -> Sentence:
        source, reference = None if sources is None else sources[index], references[index]
        outputs = (shown(side[index], reference) for side in (a, b))
        return Sentence(index + 1, scores_a[index], scores_b[index], source, reference, *outputs)

    gains = [sentence(index) for index in by_gain[:SHOWN] if scores_b[index] > scores_a[index]]
    losses = [sentence(index) for index in by_gain[: -SHOWN - 1 : -1] if scores_b[index] < scores_a[index]]
    return SideBySide(len(references), scores, method, of_sentences, gains, losses)


def scores_table(compared: SideBySide) -> str:
    """Format the scores for a terminal, with significant differences marked."""
    rows = [f"{f'{compared.lines:,} lines':<16}{'A':>9}{'B':>9}{'B - A':>9}{'p-value':>10}"]
    for one in compared.scores:
        mark = " *" if one.significant else ""
        rows.append(f"{one.metric:<16}{one.baseline:>9.2f}{one.candidate:>9.2f}{one.difference:>+9.2f}{one.p_value:>10.4f}{mark}")
    rows.append(f"* p < {SIGNIFICANT} {compared.method}")
    if compared.lines < FEW_LINES:
        rows.append(f"With fewer than {FEW_LINES} lines a p-value says little.")
    return "\n".join([*rows, *(f"{one.metric}: {one.signature}" for one in compared.scores)])


def sentences_text(compared: SideBySide) -> str:
    """Format the sentences that differ most for a terminal, with control characters escaped: a carriage return as \\r."""
    blocks = []
    for better, worse, sentences in (("B", "A", compared.gains), ("A", "B", compared.losses)):
        blocks.append(f"Largest gains of {better} over {worse} by {compared.of_sentences}:{'' if sentences else ' none'}")
        blocks += [_block(sentence, compared.of_sentences) for sentence in sentences]
    return "\n\n".join(blocks)


def _as_symbols(output: str) -> str:
    """Return a parser's output as symbols: a tree in brackets, as most parsers write it, is linearised, and any other text stays."""
    try:
        return linearised(read_tree(output))
    except ValueError:
        return output


def _block(sentence: Sentence, score: str) -> str:
    texts = {"source": sentence.source, "reference": sentence.reference, "A": sentence.a, "B": sentence.b}
    shown = [f"  {name:<11}{_escaped(text)}" for name, text in texts.items() if text is not None]
    return "\n".join([f"line {sentence.line:,}: {score} {sentence.score_a:.1f} in A, {sentence.score_b:.1f} in B", *shown])


def _escaped(text: str) -> str:
    return _CONTROL_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
