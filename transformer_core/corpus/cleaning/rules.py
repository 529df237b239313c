"""The rules that drop training pairs: rules for one pair alone, and repeats."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transformer_core.config import Clean
from transformer_core.corpus.text import Pair

DIGEST_BYTES = 16
_PARTITIONS = 64
_DIGEST = np.dtype([("high", "<u8"), ("low", "<u8")])
_RECORD = np.dtype([*_DIGEST.descr, ("number", "<u8")])
_LEAST_SHARE_OF_A_SCRIPT = 0.01
_MOST_FOREIGN = 0.5


# Returns whether to drop a repaired pair, given the number of words (`length_in_words`) of each side.
Rule = Callable[[Pair[str], tuple[int, int]], bool]


@dataclass(frozen=True)
class EvaluationSide:
    """One side of validation and test: its sentences, case-folded, and the scripts of its letters."""

    sentences: frozenset[str]
    scripts: frozenset[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "EvaluationSide":
        """Collect the texts of one side; a script counts if at least one in a hundred letters is from it."""
        texts = list(texts)
        letters: Counter[str] = Counter()
        for character, count in Counter(chain.from_iterable(texts)).items():
            if script := _script(character):
                letters[script] += count
        least = _LEAST_SHARE_OF_A_SCRIPT * letters.total()
        return cls(frozenset(map(str.casefold, texts)), frozenset(script for script, count in letters.items() if count >= least))


def rules(settings: Clean, source: EvaluationSide, target: EvaluationSide) -> dict[str, Rule]:
    """Return the rules for one pair alone, by name, in the order of application.

    Rule foreign is left out if the sentences of a side have no letters, because then no script is known to be one of its language.
    """
    chosen: dict[str, Rule] = {"empty": lambda pair, _: not (pair.source and pair.target)}
    if (most := settings.max_words) is not None:
        chosen["too_long"] = lambda _, words: max(words) > most
    if (ratio := settings.max_ratio) is not None:
        chosen["ratio"] = lambda _, words: max(words) / min(words) > ratio
    if settings.drop_copies:
        chosen["copy"] = lambda pair, _: pair.source == pair.target
    if settings.drop_foreign and source.scripts and target.scripts:
        is_foreign = _Foreign(source.scripts), _Foreign(target.scripts)
        chosen["foreign"] = lambda pair, _: is_foreign[0](pair.source) or is_foreign[1](pair.target)
    if settings.drop_overlap:
        chosen["overlap"] = lambda pair, _: pair.source.casefold() in source.sentences or pair.target.casefold() in target.sentences
    return chosen


def digest(text: str) -> bytes:
    """Return a hash of `DIGEST_BYTES`."""
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


class _Foreign:
    """Decides whether more than half of a text's letters are from other scripts than the given ones; caches known letters."""

    def __init__(self, scripts: frozenset[str]) -> None:
        self._scripts = scripts
        self._native: set[str] = set()

    def __call__(self, text: str) -> bool:
        strange = set(text) - self._native
        if not strange:
            return False
        native = {character for character in strange if not (script := _script(character)) or script in self._scripts}
        self._native |= native
        strange -= native
        return sum(character in strange for character in text) > _MOST_FOREIGN * sum(map(str.isalpha, text))


def _script(character: str) -> str:
    """Return the first word of a letter's name in Unicode, as LATIN or CJK; "" if it is not a letter."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


class Repeats:
    """Finds repeated digests in bounded memory: partitions on disk by digest, sorted one at a time.

    Args:
        folder: for the partitions; created here and removed by `found`.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._paths = [folder / str(number) for number in range(_PARTITIONS)]
        self._files = [path.open("wb") for path in self._paths]
        self._count = 0

    def add(self, digests: bytes) -> None:
        """Add concatenated digests of `DIGEST_BYTES` each; items are numbered from 0 in the order of adding."""
        read = np.frombuffer(digests, _DIGEST)
        records = np.empty(len(read), _RECORD)
        records["high"], records["low"] = read["high"], read["low"]
        records["number"] = np.arange(self._count, self._count + len(read))
        self._count += len(read)
        partition = read["low"] % _PARTITIONS
        ordered = records[np.argsort(partition, kind="stable")]
        ends = np.bincount(partition.astype(np.int64), minlength=_PARTITIONS).cumsum()
        for file, part in zip(self._files, np.split(ordered, ends[:-1]), strict=True):
            file.write(part.tobytes())

    def found(self) -> NDArray[np.bool_]:
        """Return (items,) whether each item equals an earlier one, and remove the partitions."""
        repeated = np.zeros(self._count, dtype=np.bool_)
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            records = np.fromfile(path, _RECORD)
            path.unlink()
            records = records[np.lexsort((records["number"], records["low"], records["high"]))]
            same = (records["high"][1:] == records["high"][:-1]) & (records["low"][1:] == records["low"][:-1])
            repeated[records["number"][1:][same]] = True
        self._folder.rmdir()
        return repeated
