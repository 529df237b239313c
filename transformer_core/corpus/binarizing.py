"""Writing binarized pairs: cleaned text becomes token ids in shards, in several processes and bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from transformer_core.corpus.binary import SplitCounts, TokenIds, shard_files, token_type
from transformer_core.corpus.subword import Subword
from transformer_core.corpus.text import Chunk, decode_line, read_chunks
from transformer_core.files import sha256_of
from transformer_core.processes import in_order, workers_for

PAIRS_PER_SHARD = 1 << 19
_PAIRS_PER_CHUNK = 10_000


@dataclass(frozen=True)
class EncodedPairs:
    """Some pairs as token ids, in order.

    `tokens` holds source and target of each pair, end to end; `lengths` is (pairs, 2), `lines` (pairs,) from 1. `dropped` counts the
    pairs between them that were too long.
    """

    tokens: TokenIds
    lengths: NDArray[np.int64]
    lines: NDArray[np.int64]
    dropped: int

    @classmethod
    def of(
        cls, sources: Sequence[list[int]], targets: Sequence[list[int]], first: int, vocab_size: int, max_tokens: int | None
    ) -> "EncodedPairs":
        """The pairs of lines `first` and on, without those of which a side is longer than `max_tokens`."""
        lengths = np.array([[*map(len, sources)], [*map(len, targets)]], np.int64).T
        fits = np.ones(len(lengths), np.bool_) if max_tokens is None else lengths.max(axis=1) <= max_tokens
        kept = np.flatnonzero(fits)
        ids = chain.from_iterable(chain(sources[number], targets[number]) for number in kept.tolist())
        tokens = cast(TokenIds, np.fromiter(ids, token_type(vocab_size), count=int(lengths[kept].sum())))
        return cls(tokens, lengths[kept], first + kept, len(lengths) - len(kept))


def encode_split(
    source: Path, target: Path, subword: Subword, max_tokens: int | None = None, workers: int | None = None
) -> Iterator[EncodedPairs]:
    """The pairs of two cleaned files as token ids, eos at the end of each, part by part; the parts do not depend on the workers.

    Args:
        workers: processes; None takes one for each core, fewer for little text.

    Raises:
        UserError: exit code 65; a file that is missing or not valid UTF-8, or sides of unequal length.
    """
    work = _Encode(subword, max_tokens, source, target)
    wanted = workers if workers is not None else workers_for(source)
    # disable=None: no bar where there is no terminal.
    with tqdm(desc=f"binarize {source.stem}", unit=" pairs", leave=False, disable=None) as bar:
        for part in in_order(work, read_chunks(source, target, _PAIRS_PER_CHUNK), wanted):
            yield part
            bar.update(len(part.lines) + part.dropped)


def write_split(folder: Path, parts: Iterable[EncodedPairs]) -> SplitCounts:
    """Write parts as shards to a new folder; a shard ends with the part that fills it."""
    folder.mkdir(parents=True)
    shards = _Shards(folder)
    for part in parts:
        shards.add(part)
    return shards.counts()


@dataclass(frozen=True)
class _Encode:
    """What a worker does with a chunk of text."""

    subword: Subword
    max_tokens: int | None
    source: Path
    target: Path

    def __call__(self, chunk: Chunk) -> EncodedPairs:
        sources = self.subword.encode_clean(_lines(chunk.source, self.source, chunk.first))
        targets = self.subword.encode_clean(_lines(chunk.target, self.target, chunk.first))
        return EncodedPairs.of(sources, targets, chunk.first, self.subword.vocab_size, self.max_tokens)


class _Shards:
    """Takes parts in order and writes a shard whenever enough pairs have come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[EncodedPairs] = []
        self._files: dict[str, str] = {}
        self._shards = self._pairs = self._dropped = 0
        self._tokens = np.zeros(2, np.int64)

    def add(self, part: EncodedPairs) -> None:
        """Take in the next part."""
        self._parts.append(part)
        self._pairs += len(part.lines)
        self._dropped += part.dropped
        self._tokens += part.lengths.sum(axis=0)
        if sum(len(part.lines) for part in self._parts) >= PAIRS_PER_SHARD:
            self._write()

    def counts(self) -> SplitCounts:
        """Write what is left; nothing is added after it."""
        if any(len(part.lines) for part in self._parts):
            self._write()
        source_tokens, target_tokens = map(int, self._tokens)
        return SplitCounts(
            pairs=self._pairs,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            dropped_too_long=self._dropped,
            shards=self._shards,
            files=self._files,
        )

    def _write(self) -> None:
        lengths = np.concatenate([part.lengths for part in self._parts]).ravel()
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        arrays = np.concatenate([part.tokens for part in self._parts]), offsets, np.concatenate([part.lines for part in self._parts])
        for path, array in zip(shard_files(self._folder, self._shards), arrays, strict=True):
            np.save(path, array)
            self._files[path.name] = sha256_of(path)
        self._shards += 1
        self._parts = []


def _lines(text: bytes, path: Path, first: int) -> list[str]:
    try:
        return text.decode().split("\n")[:-1]
    except UnicodeDecodeError:  # One by one, for the error that names the line.
        return [decode_line(line, path, number) for number, line in enumerate(text.split(b"\n")[:-1], start=first)]
