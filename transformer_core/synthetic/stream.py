"""Any number of pairs, in splits that share no sentence; the bytes depend on the seed, not on the machine or the number of processes."""

import zlib
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice

from transformer_core.processes import cores, in_order
from transformer_core.synthetic.sampling import Sampler
from transformer_core.synthetic.sentences import Sentence, finished_tree, sentence

PAIRS_PER_CHUNK = 1_000
# With fewer chunks for a process, starting it takes longer than it saves.
CHUNKS_PER_WORKER = 4
# Splits by the hash of an English sentence modulo 10.
_HASHES = {"train": range(8), "valid": range(8, 9), "test": range(9, 10)}


def generate(split: str, pairs: int, seed: int, workers: int | None = None, *, trees: bool = False) -> Iterator[Sentence]:
    """Return pairs of train, valid or test; a longer stream begins with the pairs of a shorter one.

    The hash of a sentence decides its split, so splits are disjoint for all seeds and sizes.

    Args:
        workers: processes; None takes one for each core, fewer for short streams. The pairs do not depend on it.
        trees: whether pairs have their trees.
    """
    chunks = -(-pairs // PAIRS_PER_CHUNK)
    wanted = workers if workers is not None else min(cores(), chunks // CHUNKS_PER_WORKER)
    return islice(chain.from_iterable(in_order(partial(_chunk, split, seed, trees), range(chunks), wanted)), pairs)


def _chunk(split: str, seed: int, trees: bool, number: int) -> list[Sentence]:
    """Return the pairs of one chunk, a function of the arguments alone."""
    sampler, hashes = Sampler(f"{split} {seed} {number}"), _HASHES[split]
    found: list[Sentence] = []
    while len(found) < PAIRS_PER_CHUNK:
        one = sentence(sampler)
        if zlib.crc32(one.source.encode()) % 10 in hashes:
            found.append(one._replace(tree=finished_tree(one) if trees else ""))
    return found
