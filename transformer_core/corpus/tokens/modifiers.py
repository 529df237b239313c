"""Modifiers of the training text, as OpusTrainer has them: pairs in capitals or without final punctuation, sources with typos or noise."""

import re
from collections.abc import Callable
from random import Random
from string import capwords

from transformer_core.config import Modifier
from transformer_core.corpus.text import Pair

_TYPOS, _NOISE = 1 / 6, 1 / 12  # Of two neighbouring letters, and of a character.
_MARKS = "#*~^_|\\<>+="


def _with_typos(source: str, random: Random) -> str:
    """Swap two letters of a word, or drop or double one; the first stays."""

    def mistyped(letters: re.Match[str]) -> str:
        left, right = letters.groups()
        return random.choice((right + left, right, left + left + right)) if random.random() < _TYPOS else letters[0]

    return re.sub(r"(?<=\w)(\w)(\w)", mistyped, source)


MODIFIERS: dict[Modifier, Callable[[Pair[str], Random], Pair[str]]] = {
    "upper": lambda pair, _: Pair(pair.source.upper(), pair.target.upper()),
    "title": lambda pair, _: Pair(*map(capwords, pair)),
    "punctuation": lambda pair, _: Pair(*(re.sub(r"(?<=\w)[^\w\s]+$", "", text) for text in pair)),
    "typos": lambda pair, random: Pair(_with_typos(pair.source, random), pair.target),
    "noise": lambda pair, random: Pair("".join(c + random.choice(_MARKS) * (random.random() < _NOISE) for c in pair.source), pair.target),
}
