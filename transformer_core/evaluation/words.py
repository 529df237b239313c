"""Attention from word to word: the pieces of a sentence joined to words, and the choice of a word to show."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transformer_core.corpus.text import is_unspaced
from transformer_core.corpus.tokens.subword import SPACE_MARK

_MARKERS = frozenset({"<s>", "</s>"})

# Pronouns of the third person by language: they usually refer to a noun elsewhere in the sentence.
PRONOUNS = {
    "en": "it its itself he him his himself she her hers herself they them their theirs themselves",
    "de": "er ihn ihm sein seine seinen seinem seiner seines sie ihr ihre ihren ihrem ihrer ihres ihnen es sich",
}


@dataclass(frozen=True)
class Word:
    """A word as text, and the indices of its pieces in the sentence."""

    text: str
    pieces: tuple[int, ...]


def words_of(pieces: Sequence[str]) -> list[Word]:
    """Join SentencePiece's pieces to words, in order; every piece belongs to one word.

    A piece with a space before it begins a word. Each of the following is a word of its own: punctuation at either end of a word, if it
    is separate pieces ("cat" and "." rather than "cat."); the begin and end tokens; each piece of a script that is written without spaces.
    """
    words = [word for group in _spaced(pieces) for word in _without_punctuation(group, pieces)]
    return [Word(_text(word, pieces), tuple(word)) for word in words]


def by_word(weights: NDArray[np.floating], words: Sequence[Word]) -> NDArray[np.float64]:
    """Return attention from word to word: summed over the pieces attended to, averaged over the pieces that attend.

    Rows of the result sum to 1, as rows of the weights do. Weights that are NaN, for example after a training that diverged, count as 0.

    Args:
        weights: (..., S, S) from piece to piece.
        words: the W words of the same sentence.

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
    """Choose the word to show: the first pronoun of the third person, else the word with the most concentrated attention.

    The latter is the word with the largest average, over the heads, of a head's largest weight on another word (not on the word itself,
    punctuation, or the begin or end token).

    Args:
        words: the W words of a sentence.
        weights: (H, W, W) between the words.
        language: language of the sentence; pronouns are known in English ("en") and German ("de").

    Returns:
        The word's index, and the reason for the choice as text.
    """
    pronouns = PRONOUNS.get(language, "").split()
    for place, word in enumerate(words):
        if word.text.lower() in pronouns:
            return place, "the first pronoun of the sentence"
    real = np.array([word.text not in (*_MARKERS, SPACE_MARK) and not _is_punctuation(word.text) for word in words])
    others = real & ~np.eye(len(words), dtype=bool)
    strongest = np.where(others, weights, 0).max(axis=2).mean(axis=0)
    return int(np.where(real, strongest, -1).argmax()), "the word whose heads give, on average, the greatest weight to one other word"


def _spaced(pieces: Sequence[str]) -> Iterator[list[int]]:
    """Yield the indices of the pieces between two spaces; begin and end tokens and pieces of scripts without spaces are separate."""
    group: list[int] = []
    for place, piece in enumerate(pieces):
        if group and _is_apart(pieces[group[-1]], piece):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _is_apart(before: str, piece: str) -> bool:
    """Return whether a piece begins another word than the piece before it. A lone space mark belongs to the next piece."""
    if piece.startswith(SPACE_MARK) or _MARKERS & {before, piece}:
        return True
    return before != SPACE_MARK and (_is_unspaced(before) or _is_unspaced(piece))


def _without_punctuation(group: list[int], pieces: Sequence[str]) -> Iterator[list[int]]:
    """Split punctuation off both ends of a group; a group of only punctuation stays whole."""
    texts = [pieces[place].replace(SPACE_MARK, "") for place in group]
    core = [number for number, text in enumerate(texts) if text and not _is_punctuation(text)]
    if not core:
        yield group
        return
    first, last = core[0] if any(texts[: core[0]]) else 0, core[-1] + 1
    yield from filter(None, (group[:first], group[first:last], group[last:]))


def _text(places: Sequence[int], pieces: Sequence[str]) -> str:
    return "".join(pieces[place] for place in places).replace(SPACE_MARK, "") or SPACE_MARK


def _is_punctuation(text: str) -> bool:
    return all(unicodedata.category(one).startswith("P") for one in text)


def _is_unspaced(piece: str) -> bool:
    return any(map(is_unspaced, piece))
