"""Error rates of lines of symbols, such as pronunciations of words, by jiwer."""

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version

from jiwer import cer, wer

from transformer_core.corpus.text import has_symbols
from transformer_core.evaluation.scoring import Score


def error_rate(unit: str, hypotheses: Sequence[str], references: Sequence[str], _language: str) -> tuple[float, str]:
    """Return the edits (Levenshtein) to 100 lines (`unit` word) or symbols (as in `has_symbols`) of the references, and the signature."""
    space = "_" if unit == "word" else " "  # Strings between spaces are the words of jiwer.
    expected, found = ([space.join(line.split()) for line in side] for side in (references, hypotheses))
    rate, units = (wer, "lines") if unit == "word" else (wer, "strings") if has_symbols(references) else (cer, "characters")
    return 100 * float(rate(expected, found)), f"of:{units}|jiwer:{version('jiwer')}"


_RATES = ("word", "Word error rate", "the share of wrong lines"), ("symbol", "Symbol error rate", "edits to 100 symbols")
ERROR_RATES = {
    Score(f"{unit}_error_rate", name, lower_is_better=True, sentence=f"{name}, {words},", tile=name): partial(error_rate, unit)
    for unit, name, words in _RATES
}
