"""Token ids on disk, memory-mapped.

Each split has a folder of its own, so that a new test set changes nothing that a training reads. Its shard n has three arrays:
NNNNN.tokens.npy has source and target of each pair, concatenated; NNNNN.offsets.npy the offset of each of these sentences, and the end;
NNNNN.lines.npy the number of each pair's line in the text.
Beside the shards, parts.npy has the number of each pair's part if sources of the corpus have names; meta.json has the names.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from transformer_core.errors import UserError
from transformer_core.files import read_json, sha256_of
from transformer_core.schema import PositiveInt, Section, check_document

META = "meta.json"
PARTS = "parts.npy"
_REMEDY = "Make it again with: dvc repro --force --single-item binarize"

StoredIds = NDArray[np.uint16] | NDArray[np.uint32]


class Meta(Section):
    """meta.json of a split: vocabulary, direction and sizes; tokens include each sentence's eos, `files` are SHA-256 sums by name.

    `source_unknown` is the number of sources with a character that the vocabulary lacks; null in older files.
    """

    format: Literal[4] = 4
    vocabulary_hash: str
    vocab_size: PositiveInt
    source: str
    target: str
    pairs: NonNegativeInt
    source_tokens: NonNegativeInt
    target_tokens: NonNegativeInt
    dropped_too_long: NonNegativeInt
    source_unknown: NonNegativeInt | None = None
    target_unknown: NonNegativeInt | None = None
    shards: NonNegativeInt
    files: dict[str, str]
    parts: list[str] = Field(default_factory=list)


class Sentences:
    """One side of a split: its sentences in order, each with its eos.

    Args:
        shards: (tokens, offsets) of each shard; its sentence i is `tokens[offsets[2 * i + side]:offsets[2 * i + side + 1]]`.
        side: 0 for the source, 1 for the target.
    """

    def __init__(self, shards: Sequence[tuple[StoredIds, NDArray[np.int64]]], side: Literal[0, 1]) -> None:
        self._shards = shards
        self._side = side
        self._ends = list(accumulate(len(offsets) // 2 for _, offsets in shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> StoredIds:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        shard = bisect_right(self._ends, index)
        tokens, offsets = self._shards[shard]
        place = 2 * (index - (self._ends[shard - 1] if shard else 0)) + self._side
        return tokens[offsets[place] : offsets[place + 1]]

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """(sentences,) number of tokens, eos included."""
        found = np.empty(len(self), np.uint32)
        for (_, offsets), end in zip(self._shards, self._ends, strict=True):
            part = np.diff(offsets)[self._side :: 2]
            found[end - len(part) : end] = part
        return found


@dataclass(frozen=True)
class Pairs:
    """Pairs of a split: their numbers, and the token ids of both sides, each sentence with its eos."""

    numbers: NDArray[np.int64]
    sources: Sequence[StoredIds]
    targets: Sequence[StoredIds]

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(2, pairs) number of tokens of each source and target, eos included."""
        return np.array([[*map(len, self.sources)], [*map(len, self.targets)]], np.int64)

    def take(self, rows: NDArray[np.int64]) -> "Pairs":
        """Select pairs by their indices."""
        return Pairs(self.numbers[rows], *([side[row] for row in rows.tolist()] for side in (self.sources, self.targets)))


@dataclass(frozen=True)
class BinarizedSplit:
    """The two sides of a split: pair i is `source[i]`, `target[i]`; `shard_lines` are the line numbers of each shard's pairs.

    `part_of` is, of each pair, the place of its part in `part_names`; empty in a corpus without named parts.
    """

    source: Sentences
    target: Sentences
    shard_lines: Sequence[NDArray[np.int64]]
    part_names: Sequence[str] = ()
    part_of: NDArray[np.uint16] = field(default_factory=lambda: np.zeros(0, np.uint16))

    def __len__(self) -> int:
        return len(self.source)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sentence on either side, eos included."""
        return int(max(self.source.lengths.max(), self.target.lengths.max()))

    def pairs(self, numbers: NDArray[np.int64]) -> Pairs:
        """Read pairs by their numbers."""
        return Pairs(numbers, *([side[number] for number in numbers.tolist()] for side in (self.source, self.target)))

    def lines(self, numbers: NDArray[np.int64]) -> list[int]:
        """Return the lines of the binarized text, counted from 1, that pairs come from."""
        starts = np.cumsum([0, *map(len, self.shard_lines)])
        shards = np.searchsorted(starts, numbers, side="right") - 1
        places = zip(shards.tolist(), (numbers - starts[shards]).tolist(), strict=True)
        return [int(self.shard_lines[shard][place]) for shard, place in places]


def token_type(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """Return the narrowest type for the ids of a vocabulary."""
    return np.dtype(np.uint16) if vocab_size <= 1 << 16 else np.dtype(np.uint32)


def shard_files(folder: Path, shard: int) -> tuple[Path, Path, Path]:
    """Return the paths of tokens, offsets and lines of a shard (numbered from 0)."""
    tokens, offsets, lines = (folder / f"{shard:05}.{array}.npy" for array in ("tokens", "offsets", "lines"))
    return tokens, offsets, lines


def read_meta(folder: Path) -> Meta:
    """Read meta.json of a split's folder. Raises `UserError` (65): it is missing, wrong, or of another format."""
    path = folder / META
    return check_document(Meta, read_json(path, _REMEDY, missing="Make it with: dvc repro binarize"), path, _REMEDY)


def open_split(folder: Path) -> BinarizedSplit:
    """Open the folder of a split, memory-mapped. Raises `UserError` (65): a file is missing, too short, or does not match the others."""
    meta = read_meta(folder)
    shards = [_open_shard(folder, number) for number in range(meta.shards)]
    both = [(tokens, offsets) for tokens, offsets, _ in shards]
    part_of = _open_array(folder / PARTS) if meta.parts else np.zeros(0, np.uint16)
    opened = BinarizedSplit(Sentences(both, 0), Sentences(both, 1), [lines for _, _, lines in shards], meta.parts, part_of)
    if len(opened) != meta.pairs:
        raise UserError(f"{folder}: {len(opened):,} pairs, but {META} says {meta.pairs:,}", _REMEDY)
    return opened


def check_split(folder: Path) -> None:
    """Compare the SHA-256 sums of a split's files with meta.json. Raises `UserError` (65): a file is missing or has changed."""
    for name, digest in read_meta(folder).files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: no such file", _REMEDY)
        if sha256_of(path) != digest:
            raise UserError(f"{path}: damaged, its SHA-256 is not the one in {META}", _REMEDY)


def _open_shard(folder: Path, shard: int) -> tuple[StoredIds, NDArray[np.int64], NDArray[np.int64]]:
    paths = shard_files(folder, shard)
    tokens, offsets, lines = map(_open_array, paths)
    belongs = tokens.dtype in (np.uint16, np.uint32) and offsets.dtype == lines.dtype == np.int64
    belongs = belongs and tokens.ndim == offsets.ndim == lines.ndim == 1 and len(offsets) == 2 * len(lines) + 1
    if not (belongs and offsets[0] == 0 and offsets[-1] == len(tokens) and (offsets[1:] > offsets[:-1]).all()):
        raise UserError(f"{paths[0]}: does not belong to the offsets and lines beside it", _REMEDY)
    return tokens, offsets, lines


def _open_array(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", "Make it with: dvc repro binarize") from None
    except OSError:
        raise
    except Exception:  # Of many types for a damaged header, also those of Python's tokenizer and parser.
        raise UserError(f"{path}: damaged", _REMEDY) from None
