"""Attention from word to word: the pieces of a sentence joined, and a word to look at."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_core.corpus.tokens.subword import SPACE_MARK

_MARKERS = frozenset({"<s>", "</s>"})
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")  # How Unicode's names of their letters begin.

# Of the third person: the noun that they refer to is elsewhere in the sentence, or should be.
PRONOUNS = {
    "en": "it its itself he him his himself she her hers herself they them their theirs themselves",
    "de": "er ihn ihm sein seine seinen seinem seiner seines sie ihr ihre ihren ihrem ihrer ihres ihnen es sich",
}


@dataclass(frozen=True)
class Word:
    """A word as one reads it, and the places of its pieces in the sentence."""

    text: str
    pieces: tuple[int, ...]


def words_of(pieces: Sequence[str]) -> list[Word]:
    """The words that SentencePiece's pieces make, in order; every piece is in one.

    A piece with a space before it begins a word. Punctuation at either end of a word is a word of its own where it is pieces of its own
    ("cat" and "." rather than "cat."), and so are the begin and end tokens, and each piece of a script that is written without spaces.
    """
    words = [word for group in _spaced(pieces) for word in _without_punctuation(group, pieces)]
    return [Word(_text(word, pieces), tuple(word)) for word in words]


def by_word(weights: NDArray[np.floating], words: Sequence[Word]) -> NDArray[np.float64]:
    """Attention from word to word: summed over the pieces attended to, averaged over the pieces that attend.

    So what a word attends to sums to 1, as what a piece does. Weights that are no numbers, as those of a training that diverged, are 0.

    Args:
        weights: (..., S, S) from piece to piece.
        words: of the same sentence, W of them.

    Returns:
        (..., W, W).
    """
    member = np.zeros((len(words), weights.shape[-1]))
    for row, word in enumerate(words):
        member[row, list(word.pieces)] = 1
    averaged = member / member.sum(axis=1, keepdims=True)
    joined: NDArray[np.float64] = averaged @ np.nan_to_num(weights.astype(np.float64)).clip(0, 1) @ member.T
    return joined


def choose_word(words: Sequence[Word], weights: NDArray[np.floating], language: str) -> tuple[int, str]:
    """The word to look at: the first pronoun of the third person, else the word with the most concentrated attention.

    The latter is the word for which the greatest weight of a head on another word (not on itself, on punctuation or on the end token) is
    highest, averaged over the heads.

    Args:
        weights: (H, W, W) of the words.
        language: of the sentence; pronouns are known in English ("en") and German ("de").

    Returns:
        Its place, and why it was chosen, in words.
    """
    pronouns = PRONOUNS.get(language, "").split()
    for place, word in enumerate(words):
        if word.text.lower() in pronouns:
            return place, "the first pronoun of the sentence"
    real = np.array([_is_word(word.text) for word in words])
    others = real & ~np.eye(len(words), dtype=bool)
    strongest = np.where(others, weights, 0).max(axis=2).mean(axis=0)
    return int(np.where(real, strongest, -1).argmax()), "the word whose heads give, on average, the greatest weight to one other word"


def _spaced(pieces: Sequence[str]) -> Iterator[list[int]]:
    """Places of the pieces between two spaces, begin and end tokens and pieces of scripts without spaces alone."""
    group: list[int] = []
    for place, piece in enumerate(pieces):
        if group and _is_apart(pieces[group[-1]], piece):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _is_apart(before: str, piece: str) -> bool:
    """True if a piece cannot belong to the word of the piece before it. A space mark alone belongs to what comes after."""
    if piece.startswith(SPACE_MARK) or _MARKERS & {before, piece}:
        return True
    return before != SPACE_MARK and (_is_unspaced(before) or _is_unspaced(piece))


def _without_punctuation(group: list[int], pieces: Sequence[str]) -> Iterator[list[int]]:
    """The group, punctuation at its ends apart; whole where it is nothing else."""
    texts = [pieces[place].replace(SPACE_MARK, "") for place in group]
    core = [number for number, text in enumerate(texts) if text and not _is_punctuation(text)]
    if not core:
        yield group
        return
    first, last = core[0] if any(texts[: core[0]]) else 0, core[-1] + 1
    yield from filter(None, (group[:first], group[first:last], group[last:]))


def _text(places: Sequence[int], pieces: Sequence[str]) -> str:
    return "".join(pieces[place] for place in places).replace(SPACE_MARK, "") or SPACE_MARK


def _is_word(text: str) -> bool:
    return text not in _MARKERS and text != SPACE_MARK and not _is_punctuation(text)


def _is_punctuation(text: str) -> bool:
    return all(unicodedata.category(one).startswith("P") for one in text)


def _is_unspaced(piece: str) -> bool:
    return any(unicodedata.name(one, "").startswith(_WITHOUT_SPACES) for one in piece)
