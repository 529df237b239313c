"""How well a model translates words by how often they occur in the training: F1 of words, after Neubig et al. (2019), compare-mt."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from unicodedata import category

from transformer_core.evaluation.bleu import references_lack_spaces
from transformer_core.evaluation.metrics import GroupScore

# The least number of occurrences of each bin's words, and the bins' labels.
BIN_STARTS = (0, 1, 2, 5, 10, 100, 1000)
BIN_LABELS = ("0", "1", "2-4", "5-9", "10-99", "100-999", "1,000+")
_LINES_AT_ONCE = 100_000
_JOINERS = "\u200c\u200d"


def without_punctuation(word: str) -> str:
    """Return a word without the punctuation around it; punctuation alone stays as it is, and so does the sign of a number.

    Symbols ($, +) and combining marks, as the vowel signs of Devanagari, are parts of a word.
    """
    start, end = 0, len(word)
    while start < end and _is_punctuation(word[start]) and not (word[start] == "-" and word[start + 1 : start + 2].isdecimal()):
        start += 1
    while start < end and _is_punctuation(word[end - 1]):
        end -= 1
    return word[start:end] or word


def f1_by_frequency(hypotheses: Sequence[str], references: Sequence[str], training: Iterable[str]) -> list[GroupScore]:
    """Return F1 of words, in percent, by their number of occurrences in the training; each group's size is its words in the references.

    A word of a hypothesis is right at most as often as the reference of the same sentence has it. Words are parted by spaces and
    compared without the punctuation around them. Bins without a word are left out; so are all if references have no spaces between words.

    Args:
        training: the target sentences of the training; read once.

    Raises:
        ValueError: hypotheses and references differ in length.
    """
    if references_lack_spaces(references):
        return []
    pairs = [(_words(hypothesis), _words(reference)) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    occurrences = count_words(training, {word for pair in pairs for words in pair for word in words})
    found, wanted, matched = Counter[int](), Counter[int](), Counter[int]()
    for hypothesis, reference in pairs:
        for bins, words in ((found, hypothesis), (wanted, reference), (matched, hypothesis & reference)):
            for word, times in words.items():
                bins[bisect_right(BIN_STARTS, occurrences[word]) - 1] += times
    return [
        GroupScore(BIN_LABELS[bin_], wanted[bin_], 200 * matched[bin_] / (found[bin_] + wanted[bin_])) for bin_ in sorted(found | wanted)
    ]


def count_words(lines: Iterable[str], wanted: Collection[str]) -> Counter[str]:
    """Count the wanted words in lines of text; memory is bounded by them and by the words of some lines."""
    counts, rest = Counter[str](), iter(lines)
    while block := list(islice(rest, _LINES_AT_ONCE)):
        # First by their spelling with punctuation, because a counter is many times faster than a search for punctuation in each word.
        for spelling, times in Counter(word for line in block for word in line.split()).items():
            if (word := without_punctuation(spelling)) in wanted:
                counts[word] += times
    return counts


def _is_punctuation(character: str) -> bool:
    """Return whether a character is punctuation or an invisible one (a direction, a soft hyphen), but for those that join letters."""
    kind = category(character)
    return kind.startswith("P") or (kind == "Cf" and character not in _JOINERS)


def _words(sentence: str) -> Counter[str]:
    return Counter(without_punctuation(word) for word in sentence.split())
