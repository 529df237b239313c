"""How a BPE model puts words together: many at a time, one merge of each after the other."""

import numpy as np
from numpy.typing import NDArray

from transformer_core.corpus.subword import PAD, SPACE_MARK, Subword

Tokens = NDArray[np.int64]

# A rank after all others: of two neighbours that do not merge.
_NONE = np.iinfo(np.int64).max


class Merges:
    """The merges of a BPE model, whose file lists pieces and no pairs: two neighbours merge where what they spell is a piece.

    Args:
        subword: a BPE model.

    Attributes:
        counts: (V,) how many merges make each token out of characters; 0 for what merges do not make: unk, eos, a user's symbols.
        begins: (V,) whether a new word begins with this token.
    """

    def __init__(self, subword: Subword) -> None:
        processor, tokens = subword.processor, range(subword.vocab_size)
        textless = [processor.is_control(token) or processor.is_unknown(token) or processor.is_byte(token) for token in tokens]
        # No piece holds a space, so a token that stands for no text merges with nothing.
        spelt = [" " if textless[token] else str(processor.id_to_piece(token)) for token in tokens]
        # With every merge left out SentencePiece gives the characters, and a user's symbols as they are.
        texts = [piece.replace(SPACE_MARK, " ") for piece in spelt]
        parts = processor.encode(texts, enable_sampling=True, alpha=1.0, nbest_size=-1, num_threads=1)
        characters = [_characters(token, parts[token], spelt) for token in tokens]
        self.counts = np.array([len(own) - 1 for own in characters])
        self.begins = np.array(textless) | [piece.startswith(SPACE_MARK) for piece in spelt]
        self._characters: Tokens = np.concatenate(characters)
        self._first_character = np.cumsum(self.counts + 1) - self.counts - 1
        self._best_first = np.array(sorted(tokens, key=processor.get_score, reverse=True))
        self._pairs, self._ranks = _pairs_and_ranks(self._best_first.tolist(), spelt)

    def apart(self, tokens: Tokens) -> Tokens:
        """The characters of tokens, all end to end."""
        lengths = self.counts[tokens] + 1
        begins = np.cumsum(lengths) - lengths
        characters: Tokens = self._characters[np.repeat(self._first_character[tokens] - begins, lengths) + np.arange(lengths.sum())]
        return characters

    def together(self, words: Tokens, made: Tokens, probability: float, random: np.random.Generator) -> Tokens:
        """Words in the tokens that their characters become with BPE-dropout (Provilkov et al. 2020, algorithm 1).

        Each merge that is possible in a word is left out with a probability, and of the others the best is made, the left one of equals;
        then all that are possible are drawn again. Where none is left the word is done.

        Args:
            words: (W, L) characters, with PAD before them and after.
            made: (W,) how many times the best merge of a word is made before the first time that it is left out for certain.
            probability: of a merge to be left out after that.

        Returns:
            (W, L) the words' tokens, with PAD before them and after.
        """
        done = np.full_like(words, PAD)
        rows = np.arange(len(words))
        ranks = self._rank(words[:, :-1], words[:, 1:])
        while len(words):
            left_out = random.random(ranks.shape) < probability
            left_out[made > 0] = False
            left_out[made == 0, ranks[made == 0].argmin(axis=1)] = True
            possible = np.where(left_out, _NONE, ranks)
            place, rank = possible.argmin(axis=1), possible.min(axis=1)
            merges = rank < _NONE
            done[rows[~merges], : words.shape[1]] = words[~merges]
            words, ranks, rows, made, place, rank = (of[merges] for of in (words, ranks, rows, made - 1, place, rank))
            every = np.arange(len(words))
            words[every, place] = self._best_first[rank]
            words, ranks = _without(words, place + 1), _without(ranks, place)
            for pair in (place - 1, place):
                ranks[every, pair] = self._rank(words[every, pair], words[every, pair + 1])
        return done

    def _rank(self, left: Tokens, right: Tokens) -> Tokens:
        pairs = left * len(self.counts) + right
        nearest = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        return np.where(self._pairs[nearest] == pairs, self._ranks[nearest], _NONE)


def _without(rows: Tokens, places: Tokens) -> Tokens:
    """(W, L - 1): the rows, each without its element at its place."""
    others: Tokens = rows[np.arange(rows.shape[1]) != places[:, None]]
    return others.reshape(len(rows), rows.shape[1] - 1)


def _characters(token: int, parts: list[int], spelt: list[str]) -> list[int]:
    """The parts of a token, without the space mark that SentencePiece puts before a text; the token itself where it has none."""
    for own in (parts, parts[1:]):
        if "".join(spelt[part] for part in own) == spelt[token]:
            return own
    return [token]


def _pairs_and_ranks(best_first: list[int], spelt: list[str]) -> tuple[Tokens, Tokens]:
    """The pairs that spell a piece, each as left token * V + right token, ascending; and the places of these pieces in `best_first`."""
    tokens = {spelt[token]: token for token in best_first}
    found = sorted(
        (tokens[piece[:cut]] * len(spelt) + tokens[piece[cut:]], rank)
        for rank, piece in enumerate(spelt[token] for token in best_first)
        for cut in range(1, len(piece))
        if piece[:cut] in tokens and piece[cut:] in tokens
    )
    pairs, ranks = np.array(found, np.int64).reshape(-1, 2).T
    return pairs.copy(), ranks.copy()
