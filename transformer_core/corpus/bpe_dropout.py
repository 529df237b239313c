"""BPE-dropout (Provilkov et al. 2020): words are segmented anew each time they are trained on, some of their merges left out at random."""

from collections.abc import Sequence

import numpy as np

from transformer_core.config import Train
from transformer_core.corpus.batches import Cursor, Update, even_microbatch_starts
from transformer_core.corpus.binary import BinarizedSplit, Pairs, TokenIds
from transformer_core.corpus.merges import Merges, Tokens
from transformer_core.corpus.subword import EOS, PAD, Subword


class BpeDropout:
    """Segments the updates of a batch plan anew: a pure function of (corpus, vocabulary, section `train`, place in the plan).

    SentencePiece samples segmentations too, but since 0.2.2 others in each process, whatever the seed; and a merge that it leaves out is
    not drawn again, which at 0.05 makes as many tokens as the paper's algorithm at 0.1.

    A side that would become longer than the split's longest sentence keeps its plain segmentation, so that the budget of a micro-batch and
    learned positions hold all the same.

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
        self._longest = int(max(split.source.lengths.max(), split.target.lengths.max()))

    def segmented(self, update: Update, at: Cursor) -> tuple[Update, list[Pairs]]:
        """An update's pairs with new tokens, cut into micro-batches by their new lengths.

        Args:
            update: of the plan.
            at: the place before it.

        Returns:
            The update as it is now, and the tokens of each of its micro-batches.
        """
        plain = self._split.pairs(np.concatenate(update.microbatches))
        sentences = [*plain.sources, *plain.targets]
        # From 1, because [seed, epoch, 0] is the same to numpy as [seed, epoch], the seed of the epoch's plan.
        random = np.random.default_rng([self._seed, at.epoch, at.done + 1])
        sampled = resegmented(sentences, self._merges, self._probability, random)
        anew = [new if len(new) <= self._longest else old for new, old in zip(sampled, sentences, strict=True)]
        microbatches = self._cut(Pairs(plain.numbers, anew[: len(plain)], anew[len(plain) :]), len(update.microbatches))
        tokens = np.sum([part.lengths.sum(axis=1) for part in microbatches], axis=0)
        positions = sum(len(part) * int(part.lengths.max(axis=1).sum()) for part in microbatches)
        return Update(tuple(part.numbers for part in microbatches), int(tokens[0]), int(tokens[1]), positions), microbatches

    def _cut(self, pairs: Pairs, multiple: int) -> list[Pairs]:
        source, target = pairs.lengths
        longest = np.maximum(source, target)
        order = np.lexsort((source, target, longest))
        starts = even_microbatch_starts(longest[order], self._rows_times_longest, multiple)
        return [pairs.take(rows) for rows in np.split(order, starts[1:])]


def resegmented(sentences: Sequence[TokenIds], merges: Merges, probability: float, random: np.random.Generator) -> list[TokenIds]:
    """Other tokens of the same texts: those that BPE-dropout makes of each word's characters.

    Args:
        sentences: in the model's plain segmentation, each with its eos.
        probability: with which a merge is left out.
    """
    tokens = np.concatenate(sentences).astype(np.int64)
    begins = np.flatnonzero(np.append(True, merges.begins[tokens[1:]]))
    lengths, merged = np.diff(begins, append=len(tokens)), np.add.reduceat(merges.counts[tokens], begins)
    made, characters = _until_left_out(merged, probability, random), lengths + merged
    # Words go by the bits of their length, so that a few long ones do not make wide rows of all; 0 are those that stay as they are.
    sizes = np.where(made == merged, 0, np.maximum(np.frexp(characters - 1)[1], 4))
    parts, anew_lengths = {0: tokens[np.repeat(sizes == 0, lengths)]}, lengths.copy()
    for size in np.unique(sizes[sizes > 0]).tolist():
        words = sizes == size
        rows = _rows(merges.apart(tokens[np.repeat(words, lengths)]), characters[words])
        rows = merges.together(rows, made[words], probability, random)
        parts[size], anew_lengths[words] = rows[rows != PAD], np.count_nonzero(rows != PAD, axis=1)
    whose = np.repeat(sizes, anew_lengths)
    anew = np.empty(len(whose), sentences[0].dtype)
    for size, part in parts.items():
        anew[whose == size] = part
    return np.split(anew, np.flatnonzero(anew == EOS)[:-1] + 1)


def _until_left_out(merged: Tokens, probability: float, random: np.random.Generator) -> Tokens:
    """How many of each word's merges are made before one is left out for the first time: all of them in most words.

    Args:
        merged: (words,) merges that make the plain segmentation; until one is left out a word is on its way there.
    """
    upto = np.cumsum(merged)
    left_out = np.flatnonzero(random.random(upto[-1]) < probability)
    words, first = np.unique(np.searchsorted(upto, left_out, side="right"), return_index=True)
    made = merged.copy()
    made[words] = left_out[first] - (upto - merged)[words]
    return made


def _rows(tokens: Tokens, lengths: Tokens) -> Tokens:
    """Words that stand end to end as rows with PAD before them and after: (W, L)."""
    rows = np.full((len(lengths), int(lengths.max()) + 2), PAD)
    columns = np.arange(rows.shape[1])
    rows[(columns > 0) & (columns <= lengths[:, None])] = tokens
    return rows
