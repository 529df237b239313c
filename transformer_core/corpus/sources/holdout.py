"""The pairs that are held out of train for validation and test: their choice, and the list that keeps it when the text changes."""

import hashlib
import heapq
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from transformer_core.corpus.text import Pair, is_normal, normalise
from transformer_core.errors import configuration_error
from transformer_core.files import read_json, write_json

# Decides, with the sentence, which pairs are held out: another key would choose others.
_SEED = b"holdout 1"
_DIGITS = 16
# The splits in the order in which they choose.
_ORDER = ("test", "valid")

# Of each split, the first digits of the ranks of its source sentences.
HeldOut = dict[str, list[str]]


def is_usable(pair: Pair[bytes]) -> bool:
    """Whether a pair can be held out: neither side is empty."""
    return bool(pair.source.strip() and pair.target.strip())


def rank(sentence: bytes) -> bytes:
    """Return the rank of a source sentence, which depends on the sentence and the seed alone."""
    text = sentence.decode("utf-8", errors="replace")
    return hashlib.blake2b((text if is_normal(text) else normalise(text)).encode(), digest_size=16, key=_SEED).digest()


def choose(ranks: Collection[bytes], sizes: Mapping[str, int], listed: HeldOut) -> dict[bytes, str]:
    """Choose the source sentences to hold out, and return the split of each.

    A sentence that is listed for a split goes to it. The rest of test, and then of valid, are the first of all other sentences by rank,
    so neither the order of the corpus nor added text changes the order of two sentences.

    Args:
        ranks: of the different source sentences, at least as many as `sizes` together.
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
    """Return the list of an entry for a source language; empty if there is none. Raises `UserError`: not JSON (65), or not a list (78)."""
    path, remedy = list_file(entry), "Restore the file from git."
    try:
        document = read_json(path, remedy) if path.exists() else {}
        return {split: list(map(str, digits)) for split, digits in document.get(language, {}).items()}
    except (AttributeError, TypeError):
        raise configuration_error(f"{path}: not a list of held-out sentences", remedy) from None


def write_list(entry: Path, chosen: Mapping[str, Mapping[bytes, str]]) -> None:
    """Write the list of an entry: of each source language, the sentences that `choose` chose."""
    write_json(
        list_file(entry),
        {language: {split: _sorted(one for one in of if of[one] == split) for split in _ORDER} for language, of in chosen.items()},
    )


def list_file(entry: Path) -> Path:
    """Return the path of an entry's list."""
    return entry.with_suffix(".held-out")


def _sorted(ranks: Iterable[bytes]) -> list[str]:
    return sorted(map(_shortened, ranks))


def _shortened(one: bytes) -> str:
    return one.hex()[:_DIGITS]
