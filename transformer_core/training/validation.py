"""Scores of a model on valid: with teacher forcing and without dropout, and of greedy outputs."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from transformer_core.config import MOST_INPUT, Precision, Train
from transformer_core.corpus.tokens.batches import BatchPlan, Indices
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import BATCH_TOKENS, Translator, batches_of, shortened
from transformer_core.models.translation import TranslationModel
from transformer_core.tasks import Task
from transformer_core.training.devices import Rank, autocast
from transformer_core.training.loader import make_batch
from transformer_core.training.loss import Loss, cross_entropy, perplexity

_TOKENS_PER_BATCH = 8192


class Validation:
    """Teacher-forced scores of a split, and the task's score of greedy outputs for `train.bleu_sentences` of its sentences.

    Logits that are not finite do not end a training: the trainer skips updates and can restore the weights.

    Args:
        split: the pairs of valid.
        references: the target of each pair as text.
        rank: this process; ranks share the sentences, and their scores are the same.
        stop_asked: returns whether this process was asked to stop.
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
        self._sources = [shortened(split.source[number], MOST_INPUT) for number in chosen[rank.index :: rank.world_size]]

    def scores(self) -> dict[str, float] | None:
        """Return the scores of `score_split` and the main score of the greedy outputs; None if any rank was asked to stop."""
        scores = score_split(self._model, self._split, self._rank, self._precision, self._stop_asked)
        if scores is None or any(self._rank.gathered(self._stop_asked())):
            return None
        with autocast(self._rank.device, self._precision):
            lists = self._translator.translate_tokens(self._sources, self._search)
        by_rank, ranks = self._rank.gathered([hypotheses[0].text for hypotheses in lists]), self._rank.world_size
        outputs = [by_rank[place % ranks][place // ranks] for place in range(len(self._references))]
        return {**scores, self._task.key: self._task.score_outputs(outputs, self._references)}

    def try_largest(self) -> None:
        """Use as much memory as `scores` does."""
        try_largest(self._model, self._split, self._rank.device, self._precision)
        lengths = [len(source) for source in self._sources]
        batches = [[self._sources[number] for number in numbers] for numbers in batches_of(lengths, BATCH_TOKENS)]
        largest = max(batches, key=lambda sources: len(sources) * (max(map(len, sources)) + self._task.max_extra), default=[])
        with autocast(self._rank.device, self._precision):
            self._translator.translate_tokens(largest, self._search)


def try_largest(model: TranslationModel, split: BinarizedSplit, device: torch.device, precision: Precision) -> None:
    """Use as much memory as `score_split` does."""
    scored = scored_pairs(split)
    model.eval()
    with torch.no_grad(), autocast(device, precision):
        for pairs in _plan(split, scored).largest():
            _losses(model, split, scored[pairs], device)


def score_split(
    model: TranslationModel, split: BinarizedSplit, rank: Rank, precision: Precision, stop_asked: Callable[[], bool]
) -> dict[str, float] | None:
    """Return negative log-likelihood and perplexity per target token (end tokens counted), and the share of tokens predicted correctly.

    Only `scored_pairs` are scored. Ranks share the batches and return the same scores, or None if any rank
    was asked to stop between two batches.
    """
    model.eval()
    scored = scored_pairs(split)
    microbatches = [scored[pairs] for update in _plan(split, scored).epoch(0) for pairs in update.microbatches]
    totals = torch.zeros(3, dtype=torch.float64, device=rank.device)
    with torch.no_grad(), autocast(rank.device, precision):
        for pairs in microbatches[rank.index :: rank.world_size]:
            if stop_asked():
                totals[2] = 1
                break
            loss = _losses(model, split, pairs, rank.device)
            totals[:2] += torch.stack((loss.nll, loss.correct)).double()
    rank.sum_over_ranks(totals)
    (nll, correct, stopped), tokens = totals.tolist(), int(split.target.lengths[scored].sum())
    if stopped:
        return None
    return {"nll": nll / tokens, "perplexity": perplexity(nll / tokens), "accuracy": correct / tokens}


def scored_pairs(split: BinarizedSplit) -> Indices:
    """Return the numbers of the pairs that are scored with teacher forcing: those without a side of more than `MOST_INPUT` tokens."""
    return np.flatnonzero(np.maximum(split.source.lengths, split.target.lengths) <= MOST_INPUT + 1)


def _plan(split: BinarizedSplit, scored: Indices) -> BatchPlan:
    return BatchPlan(split.source.lengths[scored], split.target.lengths[scored], _TOKENS_PER_BATCH, _TOKENS_PER_BATCH, seed=0)


def _losses(model: TranslationModel, split: BinarizedSplit, pairs: Indices, device: torch.device) -> Loss:
    batch = make_batch(split.pairs(pairs)).to(device)
    return cross_entropy(batch.decoded(model), model.output_weight, batch.targets, label_smoothing=0.0)
