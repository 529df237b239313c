"""Held-out pairs: the choice of pairs of train for validation and test, and the list that keeps the choice when the text changes."""

import hashlib
import heapq
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path

from transformer_core.corpus.text import Pair, normalise
from transformer_core.errors import configuration_error
from transformer_core.files import read_json, write_json

# Key of the hash that ranks sentences. Another key would choose other pairs.
_SEED = b"holdout 1"
_DIGITS = 16
_SLACK = 1000  # Superfluous candidates are removed when there are so many.
# Sentences are chosen for test first.
_ORDER = ("test", "valid")

# The first digits of the ranks of the held-out source sentences, by split.
HeldOut = dict[str, list[str]]


class Candidates:
    """The ranks that `choose` may take from any number of sentences, in bounded memory: the lowest ones, and those on a list.

    Attributes:
        ranks: ranks of different sentences; all of them if there are no more than `wanted`, and otherwise more than `wanted`.

    Args:
        wanted: number of sentences of all splits together.
        listed: see `listed_sentences`.
    """

    def __init__(self, wanted: int, listed: HeldOut) -> None:
        self.ranks: set[bytes] = set()
        self._wanted = wanted
        self._listed = frozenset(chain.from_iterable(listed.values()))
        self._most = 2 * (wanted + len(self._listed)) + _SLACK

    def add(self, one: bytes) -> None:
        """Add the rank of a sentence."""
        self.ranks.add(one)
        if len(self.ranks) > self._most:
            lowest = heapq.nsmallest(self._wanted + 1, self.ranks)
            self.ranks = {*lowest, *(rank for rank in self.ranks if _shortened(rank) in self._listed)}


def is_usable(pair: Pair[bytes]) -> bool:
    """Return whether a pair can be held out: both sides are valid UTF-8, and their normalised text is not empty."""
    try:
        return all(normalise(side.decode()) for side in pair)
    except UnicodeDecodeError:
        return False


def rank(sentence: bytes) -> bytes:
    """Return the rank of a sentence: a keyed hash (BLAKE2b, 16 bytes) of its normalised text."""
    text = normalise(sentence.decode("utf-8", errors="replace"))
    return hashlib.blake2b(text.encode(), digest_size=16, key=_SEED).digest()


def choose(ranks: Collection[bytes], sizes: Mapping[str, int], listed: HeldOut) -> dict[bytes, str]:
    """Choose the source sentences to hold out, and return the split of each by its rank.

    First, sentences listed for a split are assigned to it, up to its size. Then test, and after it valid, are filled with the lowest ranks
    of the other sentences. The order of the corpus does not matter, and added text does not change the order of two sentences.

    Args:
        ranks: ranks of the different source sentences, at least as many as all `sizes` together, or `Candidates.ranks`.
        sizes: number of sentences of each split.
        listed: see `listed_sentences`.
    """
    chosen: dict[bytes, str] = {}
    for split, digits in listed.items():
        known = frozenset(digits)
        kept = heapq.nsmallest(sizes.get(split, 0), (one for one in ranks if _shortened(one) in known)) if known else []
        chosen |= dict.fromkeys(kept, split)
    for split in (name for name in _ORDER if name in sizes):
        missing = sizes[split] - sum(name == split for name in chosen.values())
        chosen |= dict.fromkeys(heapq.nsmallest(missing, (one for one in ranks if one not in chosen)), split)
    return chosen


def listed_sentences(entry: Path, language: str) -> HeldOut:
    """Return an entry's list for a source language; empty if there is none. Raises `UserError`: not JSON (65), or not a list (78)."""
    path, remedy = list_file(entry), "Restore the file from git."
    try:
        document = read_json(path, remedy) if path.exists() else {}
        return {split: list(map(str, digits)) for split, digits in document.get(language, {}).items()}
    except (AttributeError, TypeError):
        raise configuration_error(f"{path}: not a list of held-out sentences", remedy) from None


def write_list(entry: Path, chosen: Mapping[str, Mapping[bytes, str]]) -> None:
    """Write the list of an entry: for each source language, the result of `choose`."""
    lists = {
        language: {split: sorted(_shortened(one) for one in ranks if ranks[one] == split) for split in _ORDER}
        for language, ranks in chosen.items()
    }
    write_json(list_file(entry), lists)


def list_file(entry: Path) -> Path:
    """Return the path of an entry's list."""
    return entry.with_suffix(".held-out")


def _shortened(one: bytes) -> str:
    return one.hex()[:_DIGITS]
