"""What the heads of an encoder do, counted over sentences: the token that each looks at most, and whether a pronoun finds its noun."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.corpus.text import read_lines
from transformer_core.corpus.tokens.subword import SPACE_MARK
from transformer_core.errors import UserError, configuration_error
from transformer_core.pictures.attention_maps import AttentionMaps

_OFTEN = 0.25  # In sentences of ten tokens a head that looks anywhere looks at each for a tenth of them.


class Pronoun(NamedTuple):
    """A sentence with a pronoun, the noun that it stands for, and another noun, each a word that it has once."""

    sentence: str
    pronoun: str
    noun: str
    other: str


class Heads(NamedTuple):
    """Counts for the heads of an encoder with N layers of H heads."""

    # Share of the tokens whose greatest weight is on the end token; or, apart from that, on the previous token and so on; each (N, H).
    looked: dict[str, NDArray[np.float64]]
    found: NDArray[np.bool_]  # Whether that of the pronoun is on its noun, and on the other one, (sentences, 2, N, H).

    def rows(self) -> Iterator[str]:
        """Yield the lines of a table, and what all heads together do."""
        sentences, columns = len(self.found), [*self.looked, "noun", "other noun"]
        yield "layer  head  " + "  ".join(columns)
        for layer, head in np.ndindex(self.found.shape[2:]):
            shares = [f"{share[layer, head]:.0%}" for share in self.looked.values()]
            cells = [*shares, *map(str, self.found[:, :, layer, head].sum(axis=0))]
            yield f"{layer + 1:>5}{head + 1:>6}  " + "  ".join(f"{cell:>{len(name)}}" for cell, name in zip(cells, columns, strict=True))
        of_any = self.found.any(axis=(2, 3)).sum(axis=0)
        yield f"a head finds the noun: {of_any[0]} of {sentences} sentences; the other noun: {of_any[1]}"
        counts = [f"{name} {(share >= _OFTEN).sum()}" for name, share in self.looked.items()]
        yield f"heads that look there for at least {_OFTEN:.0%} of the tokens: {', '.join(counts)}"


def read_pronouns(path: Path) -> list[Pronoun]:
    """Read lines of a sentence, its pronoun, the noun and another noun, with tabs. Raises `UserError` (65): another line, or none."""
    found = []
    for number, line in enumerate(read_lines(path), start=1):
        sentence, *words = line.split("\t")
        if len(words) != 3 or any(re.findall(r"\w+", sentence).count(word) != 1 for word in words):
            fault = f"{path}:{number}: not a sentence and, after tabs, a pronoun, its noun and another noun that it has once each"
            raise UserError(fault, "Correct the line.")
        found.append(Pronoun(sentence, *words))
    if not found:
        raise UserError(f"{path}: holds no sentence")
    return found


def count_heads(sentences: Sequence[Pronoun], each: Iterable[AttentionMaps]) -> Heads:
    """Count what the heads look at most in the maps of these sentences. Raises `UserError`: 78, none of an encoder; 65, no such word."""
    looked: dict[str, NDArray[np.float64]] = dict.fromkeys(("end token", "previous token", "next token", "same word"), np.zeros(()))
    found, tokens = [], 0
    for wanted, maps in zip(sentences, each, strict=True):
        if "encoder" not in maps.weights:
            raise configuration_error("this model has no self-attention in its encoder")
        marks = np.array([not piece.strip(SPACE_MARK).isalnum() for piece in maps.source])  # A word ends before one, and begins after it.
        begins = np.array([piece.startswith(SPACE_MARK) for piece in maps.source]) | marks
        word_of = np.cumsum(begins | np.array([True, *marks[:-1]]))
        pieces = ["".join(np.array(maps.source)[word_of == word]).strip(SPACE_MARK) for word in word_of]
        if absent := [word for word in (wanted.pronoun, wanted.noun, wanted.other) if word not in pieces]:
            raise UserError(f"{wanted.sentence}: this model reads no word {absent[0]!r} there", "Change the sentence.")
        weights, places = maps.weights["encoder"][:, :, :-1], np.arange(len(pieces) - 1)
        at_end, greatest = weights.argmax(axis=3) == len(places), weights[..., :-1].argmax(axis=3)
        hits = (at_end, greatest == places - 1, greatest == places + 1, word_of[greatest] == word_of[:-1])
        looked = {name: before + hit.sum(axis=2) for (name, before), hit in zip(looked.items(), hits, strict=True)}
        tokens += len(places)
        seen = word_of[greatest[:, :, pieces.index(wanted.pronoun)]]
        found.append([seen == word_of[pieces.index(noun)] for noun in (wanted.noun, wanted.other)])
    return Heads({name: hits / tokens for name, hits in looked.items()}, np.array(found))
