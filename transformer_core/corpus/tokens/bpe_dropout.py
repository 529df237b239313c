"""BPE-dropout (Provilkov et al. 2020): in every epoch, words, or modified ones, are segmented again with merges left out."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from transformer_core.config import Train
from transformer_core.corpus.text import Pair
from transformer_core.corpus.tokens.batches import Cursor, GlobalBatch, even_microbatch_starts
from transformer_core.corpus.tokens.binary import BinarizedSplit, Pairs, StoredIds
from transformer_core.corpus.tokens.modifiers import MODIFIERS
from transformer_core.corpus.tokens.subword import EOS, SPACE_MARK, UNK, Subword

_NO_MERGE = float("inf")


class BpeDropout:
    """Segments the updates of a batch plan again: a pure function of (corpus, vocabulary, section `train`, place in the plan).

    No library serves: SentencePiece samples differently in each process for every seed, and `tokenizers` has no seed. A sentence that would
    become longer than the longest of `split`, the training pairs, keeps its plain segmentation, so that it fits a micro-batch.
    """

    def __init__(self, subword: Subword, split: BinarizedSplit, settings: Train) -> None:
        self._split, self._settings, self._longest = split, settings, split.longest
        self._pieces, self._costs = subword.pieces, subword.of_target.merge_costs | subword.merge_costs
        self._subword, self._ids, self._sides = subword, subword.ids, (subword, subword.of_target)
        # Special tokens and a user's symbols never merge; here each is a word of its own.
        self._alone = np.array([not {piece, *piece} <= self._costs.keys() for piece in self._pieces])
        self._initial = self._alone | [piece.startswith(SPACE_MARK) for piece in self._pieces]
        self._merges = np.where(self._alone, 0, [len(piece) - 1 for piece in self._pieces])

    def segmented(self, update: GlobalBatch, at: Cursor) -> tuple[GlobalBatch, list[Pairs]]:
        """Return an update of the plan, `at` the cursor before it, with new micro-batches for the new lengths, and their tokens."""
        plain = self._modified(self._split.pairs(np.concatenate(update.microbatches)), at.epoch)
        sentences = [*plain.sources, *plain.targets]
        # From 1, because numpy treats [seed, epoch, 0] as [seed, epoch], the seed of the epoch's plan.
        sampled = self.resegmented(sentences, np.random.default_rng([self._settings.seed, at.epoch, at.done + 1]))
        anew = [new if len(new) <= self._longest else old for new, old in zip(sampled, sentences, strict=True)]
        pairs = Pairs(plain.numbers, anew[: len(plain)], anew[len(plain) :])
        longest, budget = pairs.lengths.max(axis=0), min(self._settings.tokens_per_update, self._settings.tokens_per_microbatch)
        order = np.lexsort((*pairs.lengths, longest))
        starts = even_microbatch_starts(longest[order], budget, len(update.microbatches))
        parts = [pairs.take(rows) for rows in np.split(order, starts[1:])]
        positions = sum(len(part) * int(part.lengths.max(axis=1).sum()) for part in parts)
        source_tokens, target_tokens = pairs.lengths.sum(axis=1).tolist()
        return GlobalBatch(tuple(part.numbers for part in parts), source_tokens, target_tokens, positions), parts

    def _modified(self, pairs: Pairs, epoch: int) -> Pairs:
        """Return the pairs, some of them modified; not those with symbols, and not to unknown characters or more than the longest."""
        sources, targets = list(pairs.sources), list(pairs.targets)
        for row, number in enumerate(pairs.numbers.tolist() if any(self._settings.modifiers.values()) else ()):
            random, pair = Random(f"{self._settings.seed} {epoch} {number}"), (sources[row], targets[row])
            drawn = [name for name in MODIFIERS if random.random() < self._settings.modifiers.get(name, 0)]
            if drawn and not any(self._alone[side[:-1]].any() for side in pair):
                text = Pair(*map(self._subword.decode, pair))
                for name in drawn:
                    text = MODIFIERS[name](text, random)
                new = [side.encode_clean([line])[0] for side, line in zip(self._sides, text, strict=True)]
                if max(map(len, new)) <= self._longest and UNK not in new[1]:
                    changed: list[Any] = [np.array(ids, pair[0].dtype) for ids in new]
                    sources[row], targets[row] = changed
        return Pairs(pairs.numbers, sources, targets)

    def resegmented(self, sentences: Sequence[StoredIds], random: np.random.Generator) -> list[StoredIds]:
        """Segment sentences, each with its eos, again. The words change of which a merge of the plain segmentation is left out."""
        tokens = np.concatenate(sentences)
        begins = np.flatnonzero(self._initial[tokens] | np.append(True, self._alone[tokens[:-1]]))
        merges = np.add.reduceat(self._merges[tokens], begins)
        upto, ends = np.cumsum(merges), np.append(begins[1:], len(tokens))
        left_out = np.flatnonzero(random.random(upto[-1]) < self._settings.bpe_dropout)
        words, first = np.unique(np.searchsorted(upto, left_out, side="right"), return_index=True)
        changes = np.stack([begins[words], ends[words], left_out[first] - (upto - merges)[words]], axis=1)
        anew, done, plain, draw = [], 0, tokens.tolist(), Random(int(random.integers(1 << 62))).random
        for begin, end, kept in changes.tolist():
            anew += plain[done:begin] + self._word(plain[begin:end], kept, draw)
            done = end
        flat = np.array(anew + plain[done:], tokens.dtype)
        return np.split(flat, np.flatnonzero(flat == EOS)[:-1] + 1)

    def _word(self, tokens: list[int], kept: int, random: Callable[[], float]) -> list[int]:
        """Merge a word's characters by the paper's algorithm 1; the first merges are `kept`, and the best after them is left out."""
        cost, probability, parts = self._costs.get, self._settings.bpe_dropout, [*"".join([self._pieces[token] for token in tokens])]
        costs = [cost(left + right, _NO_MERGE) for left, right in pairwise(parts)]
        for made in range(len(costs)):
            drawn = costs if made < kept else [_NO_MERGE if random() < probability else kept_cost for kept_cost in costs]
            if made == kept:
                drawn[costs.index(min(costs))] = _NO_MERGE
            if (best := min(drawn)) == _NO_MERGE:
                break
            place = drawn.index(best)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
            del costs[place]
            for pair in range(max(place - 1, 0), min(place + 1, len(costs))):
                costs[pair] = cost(parts[pair] + parts[pair + 1], _NO_MERGE)
        return [self._ids[part] for part in parts]
