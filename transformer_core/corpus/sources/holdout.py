"""Held-out pairs: the choice of pairs of train for validation and test, and the list that keeps the choice when the text changes."""

import hashlib
import heapq
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path

from transformer_core.corpus.text import Pair, normalise
from transformer_core.errors import UserError, configuration_error
from transformer_core.files import read_json, write_json

# Key of the hash that orders sentences. Another key would choose other pairs.
_SEED = b"holdout 1"
_DIGITS = 16
_SLACK = 1000  # Superfluous candidates are removed when there are so many.
# Sentences are chosen for test first.
_ORDER = ("test", "valid")

# The first digits of the hashes of the held-out source sentences, by split.
HeldOut = dict[str, list[str]]


class Candidates:
    """The hashes that `chosen` may take from any number of sentences, in bounded memory: the lowest ones, and those on a list.

    Attributes:
        hashes: hashes of different sentences; all of them if there are no more than `wanted`, and otherwise more than `wanted`.

    Args:
        wanted: number of sentences of all splits together.
        listed: see `listed_sentences`.
    """

    def __init__(self, wanted: int, listed: HeldOut) -> None:
        self.hashes: set[bytes] = set()
        self._wanted = wanted
        self._listed = frozenset(chain.from_iterable(listed.values()))
        self._most = 2 * (wanted + len(self._listed)) + _SLACK

    def add(self, sentence: bytes) -> None:
        """Add the hash of a sentence."""
        self.hashes.add(sentence_hash(sentence))
        if len(self.hashes) > self._most:
            lowest = heapq.nsmallest(self._wanted + 1, self.hashes)
            self.hashes = {*lowest, *(key for key in self.hashes if _first_digits(key) in self._listed)}

    def check_enough(self, wanted: int, where: Path) -> None:
        """Raise `UserError` (65): to hold out `wanted` sentences would leave none for training."""
        if wanted >= (different := len(self.hashes)):
            fault = f"{wanted:,} pairs are to be held out, but there are {different:,} different sentences with text on both sides"
            raise UserError(f"{where}: {fault}", "Hold out fewer or add text.")


def is_usable(pair: Pair[bytes]) -> bool:
    """Return whether a pair can be held out: both sides are valid UTF-8, and their normalised text is not empty."""
    try:
        return all(normalise(side.decode()) for side in pair)
    except UnicodeDecodeError:
        return False


def sentence_hash(sentence: bytes) -> bytes:
    """Return a keyed hash (BLAKE2b, 16 bytes) of the normalised text of a sentence."""
    text = normalise(sentence.decode("utf-8", errors="replace"))
    return hashlib.blake2b(text.encode(), digest_size=16, key=_SEED).digest()


def chosen(hashes: Collection[bytes], sizes: Mapping[str, int], listed: HeldOut) -> dict[bytes, str]:
    """Choose the source sentences to hold out, and return the split of each by its hash.

    First, sentences listed for a split are assigned to it, up to its size. Then test, and after it valid, are filled with the lowest hashes
    of the other sentences. The order of the corpus does not matter, and added text does not change the order of two sentences.

    Args:
        hashes: hashes of the different source sentences, at least as many as all `sizes` together, or `Candidates.hashes`.
        sizes: number of sentences of each split.
        listed: see `listed_sentences`.
    """
    split_of: dict[bytes, str] = {}
    for split, digits in listed.items():
        of_split = frozenset(digits)
        kept = heapq.nsmallest(sizes.get(split, 0), (key for key in hashes if _first_digits(key) in of_split)) if of_split else []
        split_of |= dict.fromkeys(kept, split)
    for split in (name for name in _ORDER if name in sizes):
        missing = sizes[split] - sum(name == split for name in split_of.values())
        split_of |= dict.fromkeys(heapq.nsmallest(missing, (key for key in hashes if key not in split_of)), split)
    return split_of


def held_out_of(pairs: Iterable[Pair[bytes]], entry: Path, language: str, sizes: Mapping[str, int]) -> dict[bytes, str]:
    """Choose the source sentences to hold out of the training pairs of an entry, by its list for their source language; see `chosen`.

    Raises `UserError` (65): as `Candidates.check_enough`, of the pairs that `is_usable`.
    """
    wanted, listed = sum(sizes.values()), listed_sentences(entry, language)
    candidates = Candidates(wanted, listed)
    for pair in filter(is_usable, pairs):
        candidates.add(pair.source)
    candidates.check_enough(wanted, entry)
    return chosen(candidates.hashes, sizes, listed)


def listed_sentences(entry: Path, language: str) -> HeldOut:
    """Return an entry's list for a source language; empty if there is none. Raises `UserError`: not JSON (65), or not a list (78)."""
    path, remedy = list_file(entry), "Restore the file from git."
    try:
        document = read_json(path, remedy) if path.exists() else {}
        return {split: list(map(str, digits)) for split, digits in document.get(language, {}).items()}
    except (AttributeError, TypeError):
        raise configuration_error(f"{path}: not a list of held-out sentences", remedy) from None


def write_list(entry: Path, held_out: Mapping[str, Mapping[bytes, str]]) -> None:
    """Write the list of an entry: for each source language, the result of `chosen`."""
    lists = {
        language: {split: sorted(_first_digits(key) for key, of in split_of.items() if of == split) for split in _ORDER}
        for language, split_of in held_out.items()
    }
    write_json(list_file(entry), lists)


def list_file(entry: Path) -> Path:
    """Return the path of an entry's list."""
    return entry.with_suffix(".held-out")


def _first_digits(key: bytes) -> str:
    return key.hex()[:_DIGITS]
