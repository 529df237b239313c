"""Scores of a model on valid: with teacher forcing and without dropout, and of greedy outputs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name

import numpy as np
import torch

from transformer_core.config import COMET, MOST_INPUT, Train
from transformer_core.corpus.text import without_tags
from transformer_core.corpus.tokens.batches import BatchPlan, Indices
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import BATCH_TOKENS, Translator, batches_of, shortened
from transformer_core.errors import UserError
from transformer_core.external import Scorer
from transformer_core.models.ops.packed import on_device
from transformer_core.models.translation import TranslationModel
from transformer_core.tasks import Task
from transformer_core.training.devices import Rank, autocast
from transformer_core.training.loader import make_batch
from transformer_core.training.loss import Loss, cross_entropy, perplexity

_TOKENS_PER_BATCH = 8192
_TOKENS_COMPARED = 20_000  # Target tokens of valid whose loss is also computed with the sources of other pairs.


@dataclass(eq=False)
class Validation:
    """Teacher-forced scores of a split; of `train.bleu_sentences` greedy outputs the task's score, and that of the command `train.comet`.

    Logits that are not finite do not end a training: the trainer skips updates and can restore the weights. Ranks share the work and get
    the same scores.

    Raises `UserError` (65): all pairs would be left out.
    """

    model: TranslationModel
    split: BinarizedSplit
    subword: Subword
    references: Sequence[str]  # The target of each pair as text.
    settings: Train
    task: Task
    rank: Rank
    stop_asked: Callable[[], bool]  # Whether this process was asked to stop.

    def __post_init__(self) -> None:
        split, settings, rank = self.split, self.settings, self.rank
        sources, targets = split.source.lengths, split.target.lengths
        self._scored = np.flatnonzero(np.maximum(sources, targets) <= MOST_INPUT + 1)
        if not len(self._scored):
            raise UserError(f"valid: each pair has more than {MOST_INPUT:,} tokens", "Split them into sentences.")
        # Pairs with a side of more than `MOST_INPUT` tokens, which have no part in the teacher-forced scores.
        self.left_out = len(split) - len(self._scored)
        self._plan = BatchPlan(sources[self._scored], targets[self._scored], _TOKENS_PER_BATCH, _TOKENS_PER_BATCH, seed=0)
        self._microbatches = [pairs for update in self._plan.epoch(0) for pairs in update.microbatches]
        tokens = np.array([targets[self._scored[pairs]].sum() for pairs in self._microbatches])
        self._compared = (np.cumsum(tokens) - tokens < _TOKENS_COMPARED) & (np.array(list(map(len, self._microbatches))) > 1)
        self._tokens_compared = int(tokens[self._compared].sum())
        self._translator = Translator(self.model, self.subword, strict=False)
        self._search = Search(beam=1, max_extra=self.task.max_extra)
        chosen = np.linspace(0, len(split) - 1, min(settings.bleu_sentences, len(split)), dtype=np.int64).tolist()
        self._references = [self.references[number] for number in chosen]
        # It ends with this process.
        self._comet = Scorer(settings.comet, "train.comet", self.stop_asked) if settings.comet else None
        self._texts = [without_tags(self.subword.decode(split.source[number]), self.subword.symbols.__contains__) for number in chosen]
        self._sources = [shortened(split.source[number], MOST_INPUT) for number in chosen[rank.index :: rank.world_size]]

    def scores(self) -> dict[str, float] | None:
        """Return the teacher-forced scores and the main score of the greedy outputs; None if any rank was asked to stop."""
        scores = self.teacher_forced()
        if scores is None or any(self.rank.gathered(self.stop_asked())):
            return None
        with autocast(self.rank.device, self.settings.precision):
            lists = self._translator.translate_tokens(self._sources, self._search)
        by_rank, ranks = self.rank.gathered([hypotheses[0].text for hypotheses in lists]), self.rank.world_size
        outputs = [by_rank[place % ranks][place // ranks] for place in range(len(self._references))]
        scores[self.task.key] = resolve_name(self.task.corpus_score)(outputs, self._references)
        if self._comet is None:
            return scores
        found = self._comet.scores(self._texts, outputs, self._references) if self.rank.index == 0 else []
        self.rank.wait_for_all()  # NCCL would not wait for a slow command.
        found = self.rank.gathered(found)[0]
        return {**scores, COMET: 100 * float(np.mean(found))} if found else None

    def teacher_forced(self) -> dict[str, float] | None:
        """Return negative log-likelihood and perplexity per target token (end tokens counted), and the share of tokens predicted correctly.

        `source_gain` is by how much the negative log-likelihood per token rises if each pair has the source of the pair before it in its
        batch, which is of about the same length: what the model takes from the source. It is NaN if no batch has two pairs.

        Return None if any rank was asked to stop between two batches.
        """
        self.model.eval()
        totals = torch.zeros(4, dtype=torch.float64, device=self.rank.device)
        with torch.no_grad(), autocast(self.rank.device, self.settings.precision):
            for number in range(self.rank.index, len(self._microbatches), self.rank.world_size):
                if self.stop_asked():
                    totals[3] = 1
                    break
                pairs = self._microbatches[number]
                loss = self._losses(pairs, pairs)
                totals[:2] += torch.stack((loss.nll, loss.correct)).double()
                if self._compared[number]:
                    totals[2] += (self._losses(np.roll(pairs, 1), pairs).nll - loss.nll).double()
        self.rank.sum_over_ranks(totals)
        (nll, correct, gain, stopped), tokens = totals.tolist(), int(self.split.target.lengths[self._scored].sum())
        if stopped:
            return None
        gained = gain / self._tokens_compared if self._tokens_compared else math.nan
        return {"nll": nll / tokens, "perplexity": perplexity(nll / tokens), "accuracy": correct / tokens, "source_gain": gained}

    def try_largest(self) -> None:
        """Use as much memory as `scores` does."""
        self.model.eval()
        batches = batches_of(list(map(len, self._sources)), BATCH_TOKENS)
        most = [len(numbers) * (max(len(self._sources[number]) for number in numbers) + self.task.max_extra) for numbers in batches]
        largest = batches[int(np.argmax(most))] if batches else []
        with torch.no_grad(), autocast(self.rank.device, self.settings.precision):
            for pairs in self._plan.largest():
                self._losses(pairs, pairs)
            self._translator.translate_tokens([self._sources[number] for number in largest], self._search)

    def _losses(self, sources: Indices, targets: Indices) -> Loss:
        """Return the losses of targets with these sources; both are places among the scored pairs."""
        of_sources, of_targets = (self.split.pairs(self._scored[places]) for places in (sources, targets))
        batch = on_device(make_batch(replace(of_targets, sources=of_sources.sources)), self.rank.device)
        return cross_entropy(*self.model.factors(batch.decoded(self.model)), batch.targets, label_smoothing=0.0)
