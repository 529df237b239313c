"""Any number of pairs, the same bytes for a seed whatever the machine and the number of processes, in splits that share no sentence."""

import zlib
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple, get_args

from transformer_core.corpus.synthetic import phenomena
from transformer_core.corpus.synthetic.draws import Draw
from transformer_core.corpus.synthetic.sentences import sentence
from transformer_core.processes import cores, in_order

Split = Literal["train", "valid", "test"]
PAIRS_PER_CHUNK = 1_000
# Below this many chunks a process, starting it costs more than it saves.
CHUNKS_PER_WORKER = 4
# Of the hash of an English sentence modulo 10: 0 to 7 train, 8 valid, 9 test.
_HASHES: dict[str, range] = {"train": range(8), "valid": range(8, 9), "test": range(9, 10)}

Row = tuple[str, str, int, str]


class SyntheticPair(NamedTuple):
    """An English sentence, its German translation, the phenomena in them, and the English sentence's bracketed phrase structure.

    `tree` is in the brackets of the Penn Treebank; its leaves are the tokens of `source` (see `tokens`).
    """

    source: str
    target: str
    phenomena: tuple[str, ...]
    tree: str


def generate(split: Split, pairs: int, seed: int, workers: int | None = None) -> Iterator[SyntheticPair]:
    """Pairs of a split, one after the other; a longer stream begins with the shorter one.

    A sentence's own hash decides to which split it belongs, so splits are disjoint whatever their seeds and sizes.

    Args:
        split: train, valid or test.
        pairs: how many.
        seed: any whole number.
        workers: processes; None takes one for each core, fewer for short streams. They do not change what is generated.

    Raises:
        ValueError: an unknown split.
    """
    if split not in get_args(Split):
        raise ValueError(f"no split {split!r}: {', '.join(get_args(Split))}")
    chunks = -(-pairs // PAIRS_PER_CHUNK)
    wanted = workers if workers is not None else min(cores(), chunks // CHUNKS_PER_WORKER)
    rows = chain.from_iterable(in_order(partial(chunk, split, seed), range(chunks), wanted))
    for (source, target, labels, tree), _ in zip(rows, range(pairs), strict=False):
        yield SyntheticPair(source, target, phenomena.names(labels), tree)


def chunk(split: str, seed: int, number: int) -> list[Row]:
    """The rows of one chunk, which depend on nothing but these three."""
    draw, hashes = Draw(f"{split} {seed} {number}"), _HASHES[split]
    found: list[Row] = []
    while len(found) < PAIRS_PER_CHUNK:
        english, german, labels, tree = sentence(draw)
        if zlib.crc32(english.encode()) % 10 in hashes:
            found.append((english, german, labels, tree))
    return found
