"""What makes a training pair unusable, one rule at a time; a pair counts for the first rule that drops it."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from transformer_core.config import Clean
from transformer_core.corpus.duplicates import DIGEST_BYTES

# Says of a repaired pair whether it is to be dropped.
Rule = Callable[[str, str], bool]

_LEAST_SHARE_OF_A_SCRIPT = 0.01
_MOST_FOREIGN = 0.5


@dataclass(frozen=True)
class HeldOut:
    """What validation and test say of one side: digests of their sentences, and the scripts that they are written in."""

    sentences: frozenset[bytes]
    scripts: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "HeldOut":
        """That of the texts of one side."""
        texts = list(texts)
        letters = Counter(script for text in texts for script in map(_script, text) if script)
        least = _LEAST_SHARE_OF_A_SCRIPT * letters.total()
        return cls(frozenset(map(digest_of_any_case, texts)), frozenset(script for script, count in letters.items() if count >= least))


def rules(settings: Clean, source: HeldOut, target: HeldOut) -> dict[str, Rule]:
    """The rules that look at one pair alone, by name, in the order they are asked."""
    chosen: dict[str, Rule] = {"empty": lambda left, right: not (left and right)}
    if (words := settings.max_words) is not None:
        chosen["too_long"] = lambda left, right: max(words_in(left), words_in(right)) > words
    if (ratio := settings.max_ratio) is not None:
        chosen["ratio"] = lambda left, right: _ratio(words_in(left), words_in(right)) > ratio
    if settings.drop_copies:
        chosen["copy"] = lambda left, right: left == right
    if settings.drop_foreign:
        chosen["foreign"] = lambda left, right: _is_foreign(left, source.scripts) or _is_foreign(right, target.scripts)
    if settings.drop_overlap:
        chosen["overlap"] = lambda left, right: (
            digest_of_any_case(left) in source.sentences or digest_of_any_case(right) in target.sentences
        )
    return chosen


def digest(text: str) -> bytes:
    """`DIGEST_BYTES` that stand for a text."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def digest_of_any_case(text: str) -> bytes:
    """The same for all texts that differ in capitals alone."""
    return digest(text.casefold())


def words_in(text: str) -> int:
    """Words of a repaired text, which has single spaces between them and none at the edges."""
    return text.count(" ") + 1


def _ratio(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


def _is_foreign(text: str, scripts: frozenset[str]) -> bool:
    """Whether more than half of the letters are of other scripts."""
    strange = {character for character in set(text) if (script := _script(character)) and script not in scripts}
    if not strange:
        return False
    letters = sum(map(str.isalpha, text))
    return sum(character in strange for character in text) > _MOST_FOREIGN * letters


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str:
    """The first word of a letter's name in Unicode, LATIN or CJK; nothing for what is no letter."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""
