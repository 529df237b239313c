"""Whether outputs vary as the references do. A model that hardly reads its source writes the same texts and phrases again and again."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_core.corpus.text import lacks_spaces

# In percent of the outputs, beyond the references. The systems of WMT17 and models of 50 BLEU on Tatoeba had at most 0.2 more of the same
# text, 1.1 fewer distinct ones and 0.3 more with a phrase twice; a model of 3 BLEU had 2, 32 and 1.
_SAME, _FEWER_DISTINCT, _REPEATING = 5, 20, 10


def variety(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return the shares, in percent, of the commonest text, of distinct texts, and of texts with three words twice."""
    found: dict[str, float] = {}
    for of, lines in (("", outputs), ("reference_", references)):
        texts = Counter(lines)
        counts = {"commonest": texts.most_common(1)[0][1], "distinct": len(texts), "repeating": sum(map(_repeats, lines))}
        found |= {f"{of}{key}": 100 * count / len(lines) for key, count in counts.items()}
    return found


def in_words(scores: Mapping[str, Any]) -> str:
    """Return the variety that scores hold, and the length of the outputs, in words; nothing if they hold none."""
    if "commonest" not in scores:
        return ""
    return (
        "{commonest:.1f}% are the commonest text, {distinct:.1f}% distinct (references {reference_distinct:.1f}%), {repeating:.1f}% have "
        "three words twice ({reference_repeating:.1f}%), the length is {length_ratio:.2f} of the references'"
    ).format_map(scores)


def collapse(scores: Mapping[str, Any]) -> str:
    """Return a warning if the outputs are much less varied than the references; else nothing."""
    more = {key: scores.get(key, 0) - scores.get(f"reference_{key}", 0) for key in ("commonest", "distinct", "repeating")}
    if more["commonest"] < _SAME and more["distinct"] > -_FEWER_DISTINCT and more["repeating"] < _REPEATING:
        return ""
    return f"The outputs say the same again and again: {in_words(scores)}. Look at source_gain of the training (docs/training.md)."


def _repeats(line: str) -> bool:
    words = list(line) if lacks_spaces(line) else line.split()
    phrases = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(phrases)) < len(phrases)
