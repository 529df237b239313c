"""The one score that training watches, apart from all others, so that a change of those trains no model anew."""

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU (13a, cased) in percent, as stage evaluate counts it."""
    found: float = BLEU().corpus_score(hypotheses, [references]).score
    return found
