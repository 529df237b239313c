"""Token ids on disk: one flat array a side with the offsets of its sentences, memory-mapped. numpy only."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from transformer_core.config import NonNegativeInt, PositiveInt, Section, validate_document
from transformer_core.errors import UserError
from transformer_core.files import read_json, write_json

META = "meta.json"
_LINES = "lines.npy"
_REMEDY = "Make it again with: dvc repro --force --single-item binarize"

TokenIds = NDArray[np.uint16] | NDArray[np.uint32]


class SplitCounts(Section):
    """What a split holds; tokens count each sentence's eos."""

    pairs: NonNegativeInt
    source_tokens: NonNegativeInt
    target_tokens: NonNegativeInt
    dropped_too_long: NonNegativeInt


class Meta(Section):
    """meta.json: of which vocabulary, in which direction, how much."""

    format: Literal[2] = 2
    vocabulary_hash: str
    vocab_size: PositiveInt
    source: str
    target: str
    splits: dict[str, SplitCounts]


class Sentences:
    """One side of a split: sentence i is `tokens[offsets[i]:offsets[i + 1]]`, its eos included.

    Args:
        tokens: (tokens,) ids of all sentences, end to end.
        offsets: (sentences + 1,) int64.
    """

    def __init__(self, tokens: TokenIds, offsets: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> TokenIds:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        return self._tokens[self._offsets[index] : self._offsets[index + 1]]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """(sentences,) tokens in each, eos counted."""
        return np.diff(self._offsets)


@dataclass(frozen=True)
class BinarizedSplit:
    """The two sides of a split; pair i is `source[i]`, `target[i]`, from line `lines[i]` (from 1) of the text that was binarized."""

    source: Sentences
    target: Sentences
    lines: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.source)


def token_type(vocab_size: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    """The narrowest type that holds every id of the vocabulary."""
    return np.dtype(np.uint16) if vocab_size <= 1 << 16 else np.dtype(np.uint32)


def binarize_split(
    directory: Path,
    split: str,
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
    vocab_size: int,
    max_tokens: int | None = None,
) -> SplitCounts:
    """Write pairs of token ids (eos at the end of each) to `directory/split`; those with a longer side than `max_tokens` are left out.

    Held in memory until written, at 2 or 4 bytes a token and 24 a pair: WMT14 English-German takes about 0.7 GB.
    """
    source, target = _Side(vocab_size), _Side(vocab_size)
    lines = array("q")
    dropped = 0
    for line, (source_ids, target_ids) in enumerate(pairs, start=1):
        if max_tokens is not None and max(len(source_ids), len(target_ids)) > max_tokens:
            dropped += 1
            continue
        lines.append(line)
        source.append(source_ids)
        target.append(target_ids)
    (directory / split).mkdir(parents=True)
    source.save(directory / split, "source")
    target.save(directory / split, "target")
    np.save(directory / split / _LINES, np.frombuffer(lines, np.int64))
    return SplitCounts(pairs=len(source), source_tokens=len(source.tokens), target_tokens=len(target.tokens), dropped_too_long=dropped)


def write_meta(directory: Path, meta: Meta) -> None:
    """Write `directory/meta.json`."""
    write_json(directory / META, meta.model_dump())


def read_meta(directory: Path) -> Meta:
    """Read `directory/meta.json`.

    Raises:
        UserError: exit code 65 where it is missing; 78 where it is not of this format.
    """
    path = directory / META
    try:
        document = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", "Make it with: dvc repro binarize") from None
    except ValueError:
        raise UserError(f"{path}: not valid JSON", _REMEDY) from None
    return validate_document(Meta, document, path)


def open_split(directory: Path, split: str) -> BinarizedSplit:
    """Open a split of binarized pairs; the tokens stay on disk until they are read.

    Raises:
        UserError: exit code 65; a file that is missing, damaged, or does not belong to the others.
    """
    folder = directory / split
    source, target = _open_side(folder, "source"), _open_side(folder, "target")
    if len(source) != len(target):
        raise UserError(f"{folder}: {len(source):,} source sentences, but {len(target):,} target sentences", _REMEDY)
    lines = _open_array(folder / _LINES)
    if lines.dtype != np.int64 or len(lines) != len(source):
        raise UserError(f"{folder / _LINES}: {len(lines):,} line numbers for {len(source):,} pairs", _REMEDY)
    return BinarizedSplit(source, target, lines)


class _Side:
    """Grows one side: flat arrays, so a token costs its 2 or 4 bytes and no Python object."""

    def __init__(self, vocab_size: int) -> None:
        self.token_type = token_type(vocab_size)
        self.tokens: array[int] = array(self.token_type.char)
        self.offsets: array[int] = array("q", [0])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def append(self, ids: Sequence[int]) -> None:
        self.tokens.extend(ids)
        self.offsets.append(len(self.tokens))

    def save(self, folder: Path, side: str) -> None:
        np.save(folder / f"{side}_tokens.npy", np.frombuffer(self.tokens, self.token_type))
        np.save(folder / f"{side}_offsets.npy", np.frombuffer(self.offsets, np.int64))


def _open_side(folder: Path, side: str) -> Sentences:
    tokens, offsets = _open_array(folder / f"{side}_tokens.npy"), _open_array(folder / f"{side}_offsets.npy")
    if tokens.dtype not in (np.uint16, np.uint32) or offsets.dtype != np.int64 or len(offsets) == 0 or offsets[-1] != len(tokens):
        raise UserError(f"{folder}: tokens and offsets of the {side} side do not belong together", _REMEDY)
    return Sentences(tokens, offsets)


def _open_array(path: Path) -> NDArray[Any]:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", "Make it with: dvc repro binarize") from None
    except (ValueError, EOFError):
        raise UserError(f"{path}: damaged", _REMEDY) from None
