"""The rules that drop training pairs: rules for one pair alone, and repeats."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from transformer_core.config import Clean
from transformer_core.corpus.text import Pair

_LEAST_SHARE_OF_A_SCRIPT = 0.01
_MOST_FOREIGN = 0.5

# Returns whether to drop a repaired pair, given the number of words (`length_in_words`) of each side.
Rule = Callable[[Pair[str], tuple[int, int]], bool]


@dataclass(frozen=True)
class EvaluationSide:
    """One side of validation and test: its sentences, case-folded, and the scripts of its letters."""

    sentences: frozenset[str]
    scripts: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "EvaluationSide":
        """Collect the texts of one side; a script counts if at least one in a hundred letters is from it."""
        texts = list(texts)
        letters: Counter[str] = Counter()
        for character, count in Counter(chain.from_iterable(texts)).items():
            if script := _script(character):
                letters[script] += count
        least = _LEAST_SHARE_OF_A_SCRIPT * letters.total()
        return cls(frozenset(map(str.casefold, texts)), frozenset(script for script, count in letters.items() if count >= least))


def rules(settings: Clean, source: EvaluationSide, target: EvaluationSide) -> dict[str, Rule]:
    """Return the rules for one pair alone, by name, in the order of application.

    Rule foreign is left out if the sentences of a side have no letters, because then no script is known to be one of its language.
    """
    chosen: dict[str, Rule] = {"empty": lambda pair, _: not (pair.source and pair.target)}
    if (most := settings.max_words) is not None:
        chosen["too_long"] = lambda _, words: max(words) > most
    if (ratio := settings.max_ratio) is not None:
        chosen["ratio"] = lambda _, words: max(words) / min(words) > ratio
    if settings.drop_copies:
        chosen["copy"] = lambda pair, _: pair.source == pair.target
    if settings.drop_foreign and source.scripts and target.scripts:
        source_is_foreign, target_is_foreign = _foreign_to(source.scripts), _foreign_to(target.scripts)
        chosen["foreign"] = lambda pair, _: source_is_foreign(pair.source) or target_is_foreign(pair.target)
    if settings.drop_overlap:
        chosen["overlap"] = lambda pair, _: pair.source.casefold() in source.sentences or pair.target.casefold() in target.sentences
    return chosen


def digests_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a hash of 64 bits of each text. Two of 36 million different texts have the same one with a probability of 4e-5."""
    return np.frombuffer(b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts), "<u8")


def _foreign_to(scripts: frozenset[str]) -> Callable[[str], bool]:
    """Return the function that tells whether more than half of a text's letters are from other scripts; it keeps the known characters."""
    native: set[str] = set()

    def is_foreign(text: str) -> bool:
        strange = set(text) - native
        if not strange:
            return False
        native.update(character for character in strange if not (script := _script(character)) or script in scripts)
        strange -= native
        return sum(character in strange for character in text) > _MOST_FOREIGN * sum(map(str.isalpha, text))

    return is_foreign


def _script(character: str) -> str:
    """Return the first word of a letter's name in Unicode, as LATIN or CJK; "" if it is not a letter."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def repeated(digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return (items,) whether each item's digest equals an earlier one's."""
    order = np.argsort(digests, kind="stable")
    found = np.zeros(len(digests), np.bool_)
    found[order[1:][digests[order[1:]] == digests[order[:-1]]]] = True
    return found
