"""Corpus BLEU by sacreBLEU, which validations in training and the scores of stage evaluate share."""

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return BLEU (13a, cased) in percent."""
    found: float = BLEU().corpus_score(hypotheses, [references]).score
    return found
