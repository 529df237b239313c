"""Vocabularies learnt from some lines, and folders of token ids as stage binarize leaves them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformer_core.config import Bpe
from transformer_core.corpus.tokens.binarizing import EncodedPairs, write_split
from transformer_core.corpus.tokens.binary import Meta
from transformer_core.corpus.tokens.subword import Subword, train_subword

Rows = Sequence[Sequence[int]]
BPE = Bpe(
    init_from=None, vocab_size=40, type="bpe", character_coverage=1.0, sample=None, seed=1, user_symbols=[], byte_fallback=False,
    lowercase=False, normalise=[],
)  # fmt: skip


def learnt_subword(lines: Iterable[str], path: Path, **settings: Any) -> Subword:
    """Learn a vocabulary from lines, by `BPE` with other settings, and write it to `path`."""
    train_subword(lines, path, BPE.model_copy(update=settings))
    return Subword.load(path)


def write_binarized(
    folder: Path, sources: Rows, targets: Rows, vocabulary: Subword | int, splits: Iterable[str] = ("train",), max_tokens: int | None = None
) -> dict[str, Meta]:
    """Write the same pairs of token ids as each split.

    Args:
        vocabulary: of the ids, or its size alone.
        max_tokens: pairs with a longer side are left out.
    """
    size, name = (vocabulary, "0") if isinstance(vocabulary, int) else (vocabulary.vocab_size, vocabulary.hash)
    parts = [EncodedPairs.of(sources, targets, 1, size, max_tokens)]
    origin = {"vocabulary_hash": name, "source": "en", "target": "de"}
    return {split: write_split(folder / split, parts, vocab_size=size, **origin) for split in splits}
