"""Binarizing: cleaned text becomes shards of token ids, in several processes and bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from transformer_core.corpus.text import Chunk, decode_line, read_chunks
from transformer_core.corpus.tokens.binary import META, PARTS, Meta, StoredIds, shard_files, token_type
from transformer_core.corpus.tokens.subword import UNK, Subword
from transformer_core.files import sha256_of, write_json
from transformer_core.processes import in_order, workers_for

PAIRS_PER_SHARD = 1 << 19


class EncodedPairs(NamedTuple):
    """Consecutive pairs as token ids.

    Attributes:
        tokens: source and target of each pair, concatenated.
        lengths: (pairs, 2).
        lines: (pairs,) line numbers from 1.
        dropped: number of pairs left out because they were too long.
        unknown: (2,) number of sources and of targets with an unknown token.
    """

    tokens: StoredIds
    lengths: NDArray[np.int64]
    lines: NDArray[np.int64]
    dropped: int
    unknown: NDArray[np.int64]

    @classmethod
    def of(
        cls, sources: Sequence[list[int]], targets: Sequence[list[int]], first: int, vocab_size: int, max_tokens: int | None
    ) -> "EncodedPairs":
        """Collect the pairs from line `first` on, without those with a side longer than `max_tokens`."""
        lengths = np.array([[*map(len, sources)], [*map(len, targets)]], np.int64).T
        kept = np.arange(len(lengths)) if max_tokens is None else np.flatnonzero(lengths.max(axis=1) <= max_tokens)
        ids = chain.from_iterable(chain(sources[number], targets[number]) for number in kept.tolist())
        tokens = cast(StoredIds, np.fromiter(ids, token_type(vocab_size), count=int(lengths[kept].sum())))
        unknown = np.array([sum(UNK in side[number] for number in kept.tolist()) for side in (sources, targets)], np.int64)
        return cls(tokens, lengths[kept], first + kept, len(lengths) - len(kept), unknown)


def encode_split(
    source: Path, target: Path, subword: Subword, max_tokens: int | None = None, workers: int | str | None = None
) -> Iterator[EncodedPairs]:
    """Yield the pairs of two cleaned files as token ids, each sentence with its eos; the parts do not depend on `workers`.

    Raises `UserError` (65): a file is missing or not valid UTF-8, or the sides differ in length.
    """
    work = partial(_encode, subword, max_tokens, source, target)
    with tqdm(desc=f"binarize {source.stem}", unit=" pairs", leave=False, disable=None) as bar:
        for part in in_order(work, read_chunks(source, target), workers or workers_for(source)):
            yield part
            bar.update(len(part.lines) + part.dropped)


def write_split(
    folder: Path,
    parts: Iterable[EncodedPairs],
    *,
    vocabulary_hash: str,
    vocab_size: int,
    source: str,
    target: str,
    names: Iterable[str] = (),
) -> Meta:
    """Write parts as shards to a new folder, with meta.json; a shard consists of whole parts. `names` are the lines of `PAIR_PARTS`."""
    folder.mkdir(parents=True)
    files: dict[str, str] = {}
    pairs = dropped = shards = 0
    tokens, unknown = np.zeros(2, np.int64), np.zeros(2, np.int64)
    numbers: dict[str, int] = {}
    part_of_line = np.fromiter((numbers.setdefault(name, len(numbers)) for name in names), np.uint16)
    kept: list[NDArray[np.int64]] = []
    for shard in _shards(parts):
        dropped += sum(part.dropped for part in shard)
        unknown += np.sum([part.unknown for part in shard], axis=0)
        ids = np.concatenate([part.tokens for part in shard])
        lengths = np.concatenate([part.lengths for part in shard])
        lines = np.concatenate([part.lines for part in shard])
        if not len(lines):
            continue
        arrays = ids, np.concatenate([[0], np.cumsum(lengths)]), lines
        for path, array in zip(shard_files(folder, shards), arrays, strict=True):
            np.save(path, array)
            files[path.name] = sha256_of(path)
        kept += [lines] if numbers else []
        pairs, tokens, shards = pairs + len(lines), tokens + lengths.sum(axis=0), shards + 1
    if numbers:
        np.save(folder / PARTS, part_of_line[np.concatenate([np.zeros(0, np.int64), *kept]) - 1])
        files[PARTS] = sha256_of(folder / PARTS)
    meta = Meta(
        vocabulary_hash=vocabulary_hash,
        vocab_size=vocab_size,
        source=source,
        target=target,
        pairs=pairs,
        source_tokens=int(tokens[0]),
        target_tokens=int(tokens[1]),
        dropped_too_long=dropped,
        source_unknown=int(unknown[0]),
        target_unknown=int(unknown[1]),
        shards=shards,
        files=files,
        parts=[*numbers],
    )
    write_json(folder / META, meta.model_dump(exclude=set() if numbers else {"parts"}))
    return meta


def _shards(parts: Iterable[EncodedPairs]) -> Iterator[list[EncodedPairs]]:
    """Yield parts that have enough pairs for a shard together."""
    waiting: list[EncodedPairs] = []
    for part in parts:
        waiting.append(part)
        if sum(len(part.lines) for part in waiting) >= PAIRS_PER_SHARD:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _encode(subword: Subword, max_tokens: int | None, source: Path, target: Path, chunk: Chunk) -> EncodedPairs:
    """Encode a chunk of the text of two files; workers apply it."""
    sources, targets = (
        side.encode_clean([decode_line(line, path, number) for number, line in enumerate(lines, start=chunk.first)])
        for side, path, lines in ((subword, source, chunk.source), (subword.of_target, target, chunk.target))
    )
    return EncodedPairs.of(sources, targets, chunk.first, subword.vocab_size, max_tokens)
