"""What makes a training pair unusable, one rule at a time; a pair counts for the first rule that drops it."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from transformer_core.config import Clean
from transformer_core.corpus.duplicates import DIGEST_BYTES

_LEAST_SHARE_OF_A_SCRIPT = 0.01
_MOST_FOREIGN = 0.5


class Sides(NamedTuple):
    """A repaired pair and the words of its sides, which several rules look at."""

    source: str
    target: str
    source_words: int
    target_words: int


# Says of a pair whether it is to be dropped.
Rule = Callable[[Sides], bool]


@dataclass(frozen=True)
class HeldOut:
    """What validation and test say of one side: their sentences, whatever the capitals, and the scripts that they are written in."""

    sentences: frozenset[str]
    scripts: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "HeldOut":
        """That of the texts of one side."""
        texts = list(texts)
        letters: Counter[str] = Counter()
        for character, count in Counter(chain.from_iterable(texts)).items():
            if script := _script(character):
                letters[script] += count
        least = _LEAST_SHARE_OF_A_SCRIPT * letters.total()
        return cls(frozenset(map(str.casefold, texts)), frozenset(script for script, count in letters.items() if count >= least))


def rules(settings: Clean, source: HeldOut, target: HeldOut) -> dict[str, Rule]:
    """The rules that look at one pair alone, by name, in the order they are asked."""
    chosen: dict[str, Rule] = {"empty": lambda pair: not (pair.source and pair.target)}
    if (words := settings.max_words) is not None:
        chosen["too_long"] = lambda pair: max(pair.source_words, pair.target_words) > words
    if (ratio := settings.max_ratio) is not None:
        chosen["ratio"] = lambda pair: _ratio(pair.source_words, pair.target_words) > ratio
    if settings.drop_copies:
        chosen["copy"] = lambda pair: pair.source == pair.target
    if settings.drop_foreign:
        is_foreign = _Foreign(source.scripts), _Foreign(target.scripts)
        chosen["foreign"] = lambda pair: is_foreign[0](pair.source) or is_foreign[1](pair.target)
    if settings.drop_overlap:
        chosen["overlap"] = lambda pair: pair.source.casefold() in source.sentences or pair.target.casefold() in target.sentences
    return chosen


def digest(text: str) -> bytes:
    """`DIGEST_BYTES` that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def words_in(text: str) -> int:
    """Words of a repaired text, which has single spaces between them and none at the edges."""
    return text.count(" ") + 1 if text else 0


def _ratio(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


class _Foreign:
    """Says whether more than half of a text's letters are of other scripts than these."""

    def __init__(self, scripts: frozenset[str]) -> None:
        self._scripts = scripts
        self._native: set[str] = set()

    def __call__(self, text: str) -> bool:
        strange = set(text) - self._native
        if not strange:
            return False
        native = {character for character in strange if not (script := _script(character)) or script in self._scripts}
        self._native |= native
        strange -= native
        return sum(character in strange for character in text) > _MOST_FOREIGN * sum(map(str.isalpha, text))


def _script(character: str) -> str:
    """The first word of a letter's name in Unicode, LATIN or CJK; nothing for what is no letter."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""
