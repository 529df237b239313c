"""Scores of a model on valid: with teacher forcing and without dropout, and of greedy outputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from transformer_core.config import COMET, MOST_INPUT, Train
from transformer_core.corpus.tokens.batches import BatchPlan, Indices
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import BATCH_TOKENS, Translator, batches_of, shortened
from transformer_core.errors import UserError
from transformer_core.external import Scorer
from transformer_core.models.translation import TranslationModel
from transformer_core.tasks import Task, load, without_tags
from transformer_core.training.devices import Rank, autocast
from transformer_core.training.loader import make_batch
from transformer_core.training.loss import Loss, cross_entropy, perplexity

_TOKENS_PER_BATCH = 8192
_TOKENS_COMPARED = 20_000  # Target tokens of valid whose loss is also computed with the sources of other pairs.


class Validation:
    """Teacher-forced scores of a split, and the task's score of greedy outputs for `train.bleu_sentences` of its sentences,
    and that of the command `train.comet`.

    Logits that are not finite do not end a training: the trainer skips updates and can restore the weights. Ranks share the work and get
    the same scores.

    Args:
        references: the target of each pair as text.
        stop_asked: returns whether this process was asked to stop.

    Attributes:
        left_out: number of pairs with a side of more than `MOST_INPUT` tokens, which have no part in the teacher-forced scores.

    Raises:
        UserError: exit code 65; all pairs would be left out.
    """

    def __init__(
        self,
        model: TranslationModel,
        split: BinarizedSplit,
        subword: Subword,
        references: Sequence[str],
        settings: Train,
        task: Task,
        rank: Rank,
        stop_asked: Callable[[], bool],
    ) -> None:
        sources, targets = split.source.lengths, split.target.lengths
        self._scored = np.flatnonzero(np.maximum(sources, targets) <= MOST_INPUT + 1)
        if not len(self._scored):
            raise UserError(f"valid: each pair has more than {MOST_INPUT:,} tokens", "Split them into sentences.")
        self.left_out = len(split) - len(self._scored)
        self._plan = BatchPlan(sources[self._scored], targets[self._scored], _TOKENS_PER_BATCH, _TOKENS_PER_BATCH, seed=0)
        self._microbatches = [pairs for update in self._plan.epoch(0) for pairs in update.microbatches]
        tokens = np.array([targets[self._scored[pairs]].sum() for pairs in self._microbatches])
        self._compared = (np.cumsum(tokens) - tokens < _TOKENS_COMPARED) & (np.array(list(map(len, self._microbatches))) > 1)
        self._tokens_compared = int(tokens[self._compared].sum())
        self._model = model
        self._split = split
        self._precision = settings.precision
        self._task = task
        self._rank = rank
        self._stop_asked = stop_asked
        self._translator = Translator(model, subword, strict=False)
        self._search = Search(beam=1, max_extra=task.max_extra)
        chosen = np.linspace(0, len(split) - 1, min(settings.bleu_sentences, len(split)), dtype=np.int64).tolist()
        self._references = [references[number] for number in chosen]
        # It ends with this process.
        self._comet = Scorer(settings.comet, "train.comet", stop_asked) if settings.comet else None
        self._texts = [without_tags(subword.decode(split.source[number]), subword.symbols) for number in chosen]
        self._sources = [shortened(split.source[number], MOST_INPUT) for number in chosen[rank.index :: rank.world_size]]

    def scores(self) -> dict[str, float] | None:
        """Return the teacher-forced scores and the main score of the greedy outputs; None if any rank was asked to stop."""
        scores = self.teacher_forced()
        if scores is None or any(self._rank.gathered(self._stop_asked())):
            return None
        with autocast(self._rank.device, self._precision):
            lists = self._translator.translate_tokens(self._sources, self._search)
        by_rank, ranks = self._rank.gathered([hypotheses[0].text for hypotheses in lists]), self._rank.world_size
        outputs = [by_rank[place % ranks][place // ranks] for place in range(len(self._references))]
        scores[self._task.key] = load(self._task.corpus_score)(outputs, self._references)
        if self._comet is None:
            return scores
        found = self._comet.scores(self._texts, outputs, self._references) if self._rank.index == 0 else []
        found = self._rank.gathered(found)[0]
        return {**scores, COMET: 100 * float(np.mean(found))} if found else None

    def teacher_forced(self) -> dict[str, float] | None:
        """Return negative log-likelihood and perplexity per target token (end tokens counted), and the share of tokens predicted correctly.

        `source_gain` is by how much the negative log-likelihood per token rises if each pair has the source of the pair before it in its
        batch, which is of about the same length: what the model takes from the source. It is NaN if no batch has two pairs.

        Return None if any rank was asked to stop between two batches.
        """
        self._model.eval()
        totals = torch.zeros(4, dtype=torch.float64, device=self._rank.device)
        with torch.no_grad(), autocast(self._rank.device, self._precision):
            for number in range(self._rank.index, len(self._microbatches), self._rank.world_size):
                if self._stop_asked():
                    totals[3] = 1
                    break
                pairs = self._microbatches[number]
                loss = self._losses(pairs, pairs)
                totals[:2] += torch.stack((loss.nll, loss.correct)).double()
                if self._compared[number]:
                    totals[2] += (self._losses(np.roll(pairs, 1), pairs).nll - loss.nll).double()
        self._rank.sum_over_ranks(totals)
        (nll, correct, gain, stopped), tokens = totals.tolist(), int(self._split.target.lengths[self._scored].sum())
        if stopped:
            return None
        gained = gain / self._tokens_compared if self._tokens_compared else math.nan
        return {"nll": nll / tokens, "perplexity": perplexity(nll / tokens), "accuracy": correct / tokens, "source_gain": gained}

    def try_largest(self) -> None:
        """Use as much memory as `scores` does."""
        self._model.eval()
        with torch.no_grad(), autocast(self._rank.device, self._precision):
            for pairs in self._plan.largest():
                self._losses(pairs, pairs)
        batches = batches_of(list(map(len, self._sources)), BATCH_TOKENS)
        most = [len(numbers) * (max(len(self._sources[number]) for number in numbers) + self._task.max_extra) for numbers in batches]
        largest = batches[int(np.argmax(most))] if batches else []
        with autocast(self._rank.device, self._precision):
            self._translator.translate_tokens([self._sources[number] for number in largest], self._search)

    def _losses(self, sources: Indices, targets: Indices) -> Loss:
        """Return the losses of targets with these sources; both are places among the scored pairs."""
        of_sources, of_targets = (self._split.pairs(self._scored[places]) for places in (sources, targets))
        batch = make_batch(replace(of_targets, sources=of_sources.sources)).to(self._rank.device)
        return cross_entropy(*self._model.factors(batch.decoded(self._model)), batch.targets, label_smoothing=0.0)
