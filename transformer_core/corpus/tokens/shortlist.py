"""Shortlists: the subwords that a translation may have, from those aligned with the sentence's subwords in the training data.

The product with the output matrix is then over some hundred rows of it instead of all (Jean et al. 2015, L'Hostis et al. 2016). The
shortlist of a sentence depends on that sentence alone, and so does its translation.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from transformer_core.corpus.tokens.subword import BOS, EOS, PAD, UNK, TokenIds
from transformer_core.errors import UserError, configuration_error, first_line

SHORTLIST = "shortlist.safetensors"
_SPECIAL = np.array([PAD, UNK, BOS, EOS])
_PAIRS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Shortlist:
    """For each subword of a source, the subwords that its translations have.

    Attributes:
        starts: (V + 1,) `targets[starts[s] : starts[s + 1]]` are the subwords aligned with subword s, the likeliest first.
        targets: token ids.
        frequent: the most frequent subwords of the target side, and the special tokens: those of every sentence.
    """

    starts: NDArray[np.int64]
    targets: NDArray[np.int64]
    frequent: NDArray[np.int64]

    def of(self, source: TokenIds, prefix: TokenIds = ()) -> NDArray[np.int64]:
        """Return the ids that a translation of these source ids may have, ascending; the first four are the special tokens.

        The source's own ids are among them, to be copied: also bytes of a character that the training does not have. The tokens of the
        translation's prefix are added.
        """
        parts = [self.targets[self.starts[token] : self.starts[token + 1]] for token in set(map(int, source))]
        return np.unique(np.concatenate([self.frequent, np.asarray(source, np.int64), np.asarray(prefix, np.int64), *parts]))

    def save(self, file: Path) -> None:
        save_file({"starts": self.starts, "targets": self.targets, "frequent": self.frequent}, file)

    @classmethod
    def load(cls, file: Path, vocab_size: int) -> "Shortlist":
        """Read a file for a vocabulary of this size. Raises `UserError` (65): it is damaged or of another vocabulary."""
        remedy = "Make it again: dvc repro --force --single-item average"
        try:
            tensors = load_file(file)
            found = cls(*(tensors[name].astype(np.int64) for name in ("starts", "targets", "frequent")))
        except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
            raise UserError(f"{file}: not a shortlist ({first_line(error)})", remedy) from None
        if not found.fits(vocab_size):
            raise UserError(f"{file}: not a shortlist for a vocabulary of {vocab_size:,}", remedy)
        return found

    def fits(self, vocab_size: int) -> bool:
        """Return whether this is a shortlist of a vocabulary of so many subwords."""
        if any(part.ndim != 1 for part in (self.starts, self.targets, self.frequent)) or len(self.starts) != vocab_size + 1:
            return False
        ids = np.concatenate([self.targets, self.frequent])
        ordered = (np.diff(self.starts, prepend=0, append=len(self.targets)) >= 0).all() and self.starts[-1] == len(self.targets)
        return bool(ordered and np.isin(_SPECIAL, self.frequent).all() and ids.min() >= 0 and ids.max() < vocab_size)


def align(pairs: Callable[[], Iterable[tuple[TokenIds, TokenIds]]], vocab_size: int, size: int) -> Shortlist:
    """Return the shortlist of training pairs, aligned by fast_align's model (Dyer et al. 2013) in both directions.

    Args:
        pairs: called twice; returns pairs of token ids, whose end tokens are not aligned.
        size: most targets for each source subword, and the number of frequent subwords of every sentence.

    Raises `UserError` (78): the aligner is not installed.
    """
    check_aligner()
    import systran_align  # type: ignore[import-not-found]

    counts: Counter[tuple[int, int]] = Counter()
    occurrences = np.zeros(vocab_size, np.int64)
    with TemporaryDirectory() as folder:
        text, forward, backward = (str(Path(folder) / name) for name in ("pairs", "forward", "backward"))
        with Path(text).open("w", encoding="ascii") as file:
            for source, target in pairs():
                np.add.at(occurrences, np.asarray(target, np.int64), 1)
                file.write(f"{' '.join(_words(source))} ||| {' '.join(_words(target))}\n")
        systran_align.generate_alignment_probabilities(text, forward, backward, favor_diagonal=True, optimize_tension=True)
        probabilities, again = systran_align.Aligner(forward, backward), iter(pairs())
        while chunk := [(_words(source), _words(target)) for source, target in islice(again, _PAIRS_AT_ONCE)]:
            sources, targets = (list(side) for side in zip(*chunk, strict=True))
            for source, target, found in zip(sources, targets, probabilities.align_batch(sources, targets), strict=True):
                counts.update((int(source[left]), int(target[right])) for left, right in found["alignments"])
    return _pruned(counts, occurrences, size)


def _pruned(counts: Counter[tuple[int, int]], occurrences: NDArray[np.int64], size: int) -> Shortlist:
    targets_of: list[list[tuple[int, int]]] = [[] for _ in occurrences]
    for (source, target), count in counts.items():
        targets_of[source].append((-count, target))
    # A subword that also occurs in targets may be copied.
    kept = [
        ([source] if occurrences[source] else []) + [target for _, target in sorted(found)[:size] if target != source]
        for source, found in enumerate(targets_of)
    ]
    starts = np.cumsum([0, *map(len, kept)])
    frequent = np.argsort(-occurrences, kind="stable")[:size]
    frequent = frequent[occurrences[frequent] > 0]
    return Shortlist(starts, np.array([target for part in kept for target in part], np.int64), np.union1d(_SPECIAL, frequent))


def _words(tokens: TokenIds) -> list[str]:
    return [str(token) for token in tokens if token != EOS]


def check_aligner() -> None:
    """Check that the aligner is installed. Raises `UserError` (78): it is not."""
    if find_spec("systran_align") is None:
        raise configuration_error("systran-align is not installed", "pip install systran-align")
