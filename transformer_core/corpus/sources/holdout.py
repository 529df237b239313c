"""Held-out pairs: pairs of a training text that are chosen for validation and test."""

import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path

from transformer_core.corpus.text import Pair, normalise
from transformer_core.errors import UserError

# Key of the hash that orders sentences. Another key would choose other pairs.
_SEED = b"holdout 1"
_SLACK = 1000  # Superfluous hashes are removed when there are so many.


def held_out(pairs: Callable[[], Iterable[Pair[bytes]]], sizes: Mapping[str, int], where: Path) -> dict[str, list[tuple[str, str]]]:
    """Choose as many pairs for each split as `sizes` says, with different source sentences, in the order of the text.

    Those are chosen whose source sentences have the lowest hashes, whatever the order of the text; at most so many hashes are in memory.
    `pairs` is called twice. Raises `UserError` (65), with the text's file `where`: no sentence would be left to train on.
    """
    wanted = sum(sizes.values())
    lowest: set[bytes] = set()
    for pair in filter(is_usable, pairs()):
        lowest.add(_sentence_hash(pair.source))
        if len(lowest) > 2 * wanted + _SLACK:
            lowest = set(heapq.nsmallest(wanted + 1, lowest))
    if len(lowest) <= wanted:
        fault = f"{wanted:,} pairs are to be held out, but there are {len(lowest):,} different sentences with text on both sides"
        raise UserError(f"{where}: {fault}", "Hold out fewer or add text.")
    ordered = iter(sorted(lowest))
    split_of = {key: split for split in ("test", "valid") if split in sizes for key in islice(ordered, sizes[split])}
    chosen: dict[str, list[tuple[str, str]]] = {split: [] for split in sizes}
    for pair in filter(is_usable, pairs()):
        if split := split_of.pop(_sentence_hash(pair.source), None):
            chosen[split].append((pair.source.decode(), pair.target.decode()))
    return chosen


def is_usable(pair: Pair[bytes]) -> bool:
    """Return whether a pair can be held out: both sides are valid UTF-8, and their normalised text is not empty."""
    try:
        return all(normalise(side.decode()) for side in pair)
    except UnicodeDecodeError:
        return False


def _sentence_hash(sentence: bytes) -> bytes:
    """Return a keyed hash (BLAKE2b, 16 bytes) of the normalised text of a sentence."""
    return hashlib.blake2b(normalise(sentence.decode()).encode(), digest_size=16, key=_SEED).digest()
