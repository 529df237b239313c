"""Any number of pairs, in splits that share no sentence; the bytes depend on the seed, not on the machine or the number of processes."""

import zlib
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from transformer_core.processes import cores, in_order
from transformer_core.synthetic import phenomena
from transformer_core.synthetic.sampling import Sampler
from transformer_core.synthetic.sentences import finished_tree, sentence

PAIRS_PER_CHUNK = 1_000
# With fewer chunks for a process, starting it takes longer than it saves.
CHUNKS_PER_WORKER = 4
# Splits by the hash of an English sentence modulo 10.
_HASHES = {"train": range(8), "valid": range(8, 9), "test": range(9, 10)}


class SyntheticPair(NamedTuple):
    """An English sentence, its German translation, the phenomena in them, and the English sentence's bracketed phrase structure.

    `tree` is in the brackets of the Penn Treebank, its leaves are the tokens of `source`; "" if trees were not asked for.
    """

    source: str
    target: str
    phenomena: tuple[str, ...]
    tree: str = ""


def generate(split: str, pairs: int, seed: int, workers: int | None = None, *, trees: bool = False) -> Iterator[SyntheticPair]:
    """Yield pairs of train, valid or test; a longer stream begins with the pairs of a shorter one.

    The hash of a sentence decides its split, so splits are disjoint for all seeds and sizes.

    Args:
        workers: processes; None takes one for each core, fewer for short streams. The pairs do not depend on it.
        trees: whether pairs have their trees.
    """
    chunks = -(-pairs // PAIRS_PER_CHUNK)
    wanted = workers if workers is not None else min(cores(), chunks // CHUNKS_PER_WORKER)
    rows = chain.from_iterable(in_order(partial(_chunk, split, seed, trees), range(chunks), wanted))
    for (source, target, labels, *tree), _ in zip(rows, range(pairs), strict=False):
        yield SyntheticPair(source, target, phenomena.names(labels), *tree)


def _chunk(split: str, seed: int, trees: bool, number: int) -> list[tuple[Any, ...]]:
    """Return the rows of one chunk, a function of the arguments alone."""
    sampler, hashes = Sampler(f"{split} {seed} {number}"), _HASHES[split]
    found: list[tuple[Any, ...]] = []
    while len(found) < PAIRS_PER_CHUNK:
        one = sentence(sampler)
        if zlib.crc32(one.english.encode()) % 10 in hashes:
            found.append((*one[:3], finished_tree(one)) if trees else one[:3])
    return found
