"""BPE-dropout (Provilkov et al. 2020): in every epoch, words are segmented again with some merges left out at random."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from transformer_core.config import Train
from transformer_core.corpus.tokens.batches import Cursor, GlobalBatch, even_microbatch_starts
from transformer_core.corpus.tokens.binary import BinarizedSplit, PackedIds, Pairs
from transformer_core.corpus.tokens.subword import EOS, PAD, SPACE_MARK, Subword

Tokens = NDArray[np.int64]

# The rank of neighbours that do not merge, after all others.
_NONE = np.iinfo(np.int64).max


class Merges:
    """The merges of a BPE model. Its file lists pieces, not pairs: neighbours can merge if their concatenation is a piece.

    Attributes:
        counts: (V,) number of merges that make each token from characters; 0 for unk, eos and a user's symbols.
        word_initial: (V,) whether this token begins a word.
    """

    def __init__(self, subword: Subword) -> None:
        processor, tokens = subword.processor, range(subword.vocab_size)
        textless = [processor.is_control(token) or processor.is_unknown(token) or processor.is_byte(token) for token in tokens]
        # No piece contains a space, so tokens without text never merge.
        spelt = [" " if textless[token] else subword.pieces[token] for token in tokens]
        # With alpha 1 SentencePiece makes no merge and returns the characters, and a user's symbols whole.
        texts = [piece.replace(SPACE_MARK, " ") for piece in spelt]
        parts = processor.encode(texts, enable_sampling=True, alpha=1.0, nbest_size=-1, num_threads=1)
        characters = [_characters(token, parts[token], spelt) for token in tokens]
        self.counts = np.array([len(own) - 1 for own in characters])
        self.word_initial = np.array(textless) | [piece.startswith(SPACE_MARK) for piece in spelt]
        self._characters: Tokens = np.concatenate(characters)
        self._first_character = np.cumsum(self.counts + 1) - self.counts - 1
        self._best_first = np.array(sorted(tokens, key=processor.get_score, reverse=True))
        self._pairs, self._ranks = _pairs_and_ranks(self._best_first.tolist(), spelt)

    def characters_of(self, tokens: Tokens) -> Tokens:
        """Return the characters of tokens, concatenated."""
        lengths = self.counts[tokens] + 1
        begins = np.cumsum(lengths) - lengths
        characters: Tokens = self._characters[np.repeat(self._first_character[tokens] - begins, lengths) + np.arange(lengths.sum())]
        return characters

    def merge(self, words: Tokens, kept_merges: Tokens, probability: float, random: np.random.Generator) -> Tokens:
        """Merge the characters of words with BPE-dropout (Provilkov et al. 2020, algorithm 1).

        In each step, every possible merge of a word is left out with a probability, and the best of the others, the leftmost of equals, is
        made. A word is done when no merge remains in a step.

        Args:
            words: (W, L) characters, with PAD before and after.
            kept_merges: (W,) number of merges to make without dropout; the next one is always left out.
            probability: of leaving out a merge after these.

        Returns:
            (W, L) the words' tokens, with PAD before and after.
        """
        done = np.full_like(words, PAD)
        rows = np.arange(len(words))
        ranks = self._rank(words[:, :-1], words[:, 1:])
        while len(words):
            left_out = random.random(ranks.shape) < probability
            left_out[kept_merges > 0] = False
            left_out[kept_merges == 0, ranks[kept_merges == 0].argmin(axis=1)] = True
            possible = np.where(left_out, _NONE, ranks)
            place, rank = possible.argmin(axis=1), possible.min(axis=1)
            merges = rank < _NONE
            done[rows[~merges], : words.shape[1]] = words[~merges]
            words, ranks, rows, kept_merges, place, rank = (of[merges] for of in (words, ranks, rows, kept_merges - 1, place, rank))
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


class BpeDropout:
    """Segments the updates of a batch plan again: a pure function of (corpus, vocabulary, section `train`, place in the plan).

    SentencePiece samples segmentations too, but since 0.2.2 differently in each process for every seed. It also never draws again for a
    merge that it left out, which at 0.05 gives as many tokens as the paper's algorithm at 0.1.

    A sentence that would become longer than the split's longest one keeps its plain segmentation, so that it fits the budget of a
    micro-batch and the learned positions.

    Args:
        subword: a BPE model, the one that the split was binarized with.
        split: the training pairs in their plain segmentation.
        settings: section `train`; its `bpe_dropout` is above 0.
    """

    def __init__(self, subword: Subword, split: BinarizedSplit, settings: Train) -> None:
        self._merges = Merges(subword)
        self._split = split
        self._probability = settings.bpe_dropout
        self._seed = settings.seed
        self._rows_times_longest = min(settings.tokens_per_update, settings.tokens_per_microbatch)
        self._longest = split.longest

    def segmented(self, update: GlobalBatch, at: Cursor) -> tuple[GlobalBatch, list[Pairs]]:
        """Segment the pairs of an update again, and cut them into micro-batches by their new lengths.

        Args:
            update: an update of the plan.
            at: the cursor before it.

        Returns:
            The new update, and the tokens of each of its micro-batches.
        """
        plain = self._split.pairs(np.concatenate(update.microbatches))
        sentences = [*plain.sources, *plain.targets]
        # From 1, because numpy treats [seed, epoch, 0] as [seed, epoch], the seed of the epoch's plan.
        random = np.random.default_rng([self._seed, at.epoch, at.done + 1])
        sampled = resegmented(sentences, self._merges, self._probability, random)
        anew = [new if len(new) <= self._longest else old for new, old in zip(sampled, sentences, strict=True)]
        microbatches = self._cut(Pairs(plain.numbers, anew[: len(plain)], anew[len(plain) :]), len(update.microbatches))
        tokens = np.sum([part.lengths.sum(axis=1) for part in microbatches], axis=0)
        positions = sum(len(part) * int(part.lengths.max(axis=1).sum()) for part in microbatches)
        return GlobalBatch(tuple(part.numbers for part in microbatches), int(tokens[0]), int(tokens[1]), positions), microbatches

    def _cut(self, pairs: Pairs, multiple: int) -> list[Pairs]:
        source, target = pairs.lengths
        longest = np.maximum(source, target)
        order = np.lexsort((source, target, longest))
        starts = even_microbatch_starts(longest[order], self._rows_times_longest, multiple)
        return [pairs.take(rows) for rows in np.split(order, starts[1:])]


def resegmented(sentences: Sequence[PackedIds], merges: Merges, probability: float, random: np.random.Generator) -> list[PackedIds]:
    """Segment sentences with BPE-dropout.

    Args:
        sentences: in the model's plain segmentation, each with its eos.
        probability: of leaving out a merge.
    """
    tokens = np.concatenate(sentences).astype(np.int64)
    begins = np.flatnonzero(np.append(True, merges.word_initial[tokens[1:]]))
    lengths, merged = np.diff(begins, append=len(tokens)), np.add.reduceat(merges.counts[tokens], begins)
    kept_merges, characters = _until_left_out(merged, probability, random), lengths + merged
    # Words are grouped by the bits of their length, so that a few long ones do not widen all rows; group 0 keeps its segmentation.
    sizes = np.where(kept_merges == merged, 0, np.maximum(np.frexp(characters - 1)[1], 4))
    parts, anew_lengths = {0: tokens[np.repeat(sizes == 0, lengths)]}, lengths.copy()
    for size in np.unique(sizes[sizes > 0]).tolist():
        words = sizes == size
        rows = _rows(merges.characters_of(tokens[np.repeat(words, lengths)]), characters[words])
        rows = merges.merge(rows, kept_merges[words], probability, random)
        parts[size], anew_lengths[words] = rows[rows != PAD], np.count_nonzero(rows != PAD, axis=1)
    whose = np.repeat(sizes, anew_lengths)
    anew = np.empty(len(whose), sentences[0].dtype)
    for size, part in parts.items():
        anew[whose == size] = part
    return np.split(anew, np.flatnonzero(anew == EOS)[:-1] + 1)


def _until_left_out(merged: Tokens, probability: float, random: np.random.Generator) -> Tokens:
    """Draw the number of merges of each word before the first one that is left out; in most words that is all of them.

    Args:
        merged: (words,) number of merges of the plain segmentation, which are the same until one is left out.
    """
    upto = np.cumsum(merged)
    left_out = np.flatnonzero(random.random(upto[-1]) < probability)
    words, first = np.unique(np.searchsorted(upto, left_out, side="right"), return_index=True)
    kept_merges = merged.copy()
    kept_merges[words] = left_out[first] - (upto - merged)[words]
    return kept_merges


def _rows(tokens: Tokens, lengths: Tokens) -> Tokens:
    """Arrange concatenated words as rows with PAD before and after: (W, L)."""
    rows = np.full((len(lengths), int(lengths.max()) + 2), PAD)
    columns = np.arange(rows.shape[1])
    rows[(columns > 0) & (columns <= lengths[:, None])] = tokens
    return rows


def _without(rows: Tokens, places: Tokens) -> Tokens:
    """Remove one element from each row: (W, L - 1)."""
    others: Tokens = rows[np.arange(rows.shape[1]) != places[:, None]]
    return others.reshape(len(rows), rows.shape[1] - 1)


def _characters(token: int, parts: list[int], spelt: list[str]) -> list[int]:
    """Return the parts of a token, without the space mark that SentencePiece adds before a text; the token itself if there are none."""
    for own in (parts, parts[1:]):
        if "".join(spelt[part] for part in own) == spelt[token]:
            return own
    return [token]


def _pairs_and_ranks(best_first: list[int], spelt: list[str]) -> tuple[Tokens, Tokens]:
    """Return the pairs that spell a piece, as left token * V + right token, ascending, and the ranks of the pieces in `best_first`."""
    tokens = {spelt[token]: token for token in best_first}
    found = sorted(
        (tokens[piece[:cut]] * len(spelt) + tokens[piece[cut:]], rank)
        for rank, piece in enumerate(spelt[token] for token in best_first)
        for cut in range(1, len(piece))
        if piece[:cut] in tokens and piece[cut:] in tokens
    )
    pairs, ranks = np.array(found, np.int64).reshape(-1, 2).T
    return pairs.copy(), ranks.copy()
