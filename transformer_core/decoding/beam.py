"""Beam search with the paper's length penalty and a stop that is proved, not guessed (paper 6.1)."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from transformer_core.corpus.subword import BOS, EOS, PAD, UNK
from transformer_core.models.translation import DecoderState

State = TypeVar("State", bound=DecoderState)


class StepModel(Protocol[State]):
    """What beam search needs of a model."""

    def start(self, source: Tensor, source_mask: Tensor) -> State: ...

    def step(self, tokens: Tensor, state: State) -> Tensor: ...


class Finished(NamedTuple):
    """A complete output: token ids with the end token, its log-probability, and that over the length penalty."""

    tokens: list[int]
    log_probability: float
    score: float


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """((5 + |Y|) / 6)^alpha, |Y| counting the end token (Wu et al. 2016, eq. 14, the paper's 6.1)."""
    return ((5.0 + length) / 6.0) ** alpha


@torch.inference_mode()
def beam_search(
    model: StepModel[State],
    source: Tensor,
    source_mask: Tensor,
    beam: int,
    alpha: float,
    max_extra: int,
    most_positions: int | None = None,
) -> list[list[Finished]]:
    """The best finished outputs of each sentence, best first; at least one, at most `beam`.

    An output of a sentence has at most its source tokens (end token left out) + `max_extra` tokens, end token included. A sentence is done
    when its best finished score is not below what its best unfinished hypothesis could still reach: log P can only fall, and the
    penalty divides by most at the greatest length, so log P / penalty(greatest length) is that bound.

    Args:
        model: its `start` and `step`.
        source: (B, S) token ids, padded on the right.
        source_mask: (B, S), True at real tokens.
        beam: K, hypotheses kept a sentence.
        alpha: exponent of the length penalty, 0 for none.
        max_extra: see above, at least 1.
        most_positions: bounds every output, for a model that has learned so many positions.
    """
    greatest_length = source_mask.sum(dim=1) - 1 + max_extra
    search = _Search(greatest_length if most_positions is None else greatest_length.clamp(max=most_positions), beam, alpha)
    state = model.start(source, source_mask)
    while len(search.sentences):
        logits = model.step(search.newest_tokens(), state)
        beams = search.extend(logits)
        beams, kept = search.drop_done(beams)
        state.select(beams, kept)
    return search.results


@dataclass
class _Pool:
    """K hypotheses a sentence: scores (B, K), what they are ranked by; log_probability (B, K); tokens (B, K, t)."""

    scores: Tensor
    log_probability: Tensor
    tokens: Tensor

    def select(self, sentences: Tensor) -> "_Pool":
        return _Pool(self.scores[sentences], self.log_probability[sentences], self.tokens[sentences])

    def best(self, count: int) -> "_Pool":
        scores, order = self.scores.topk(count, dim=1)
        tokens = self.tokens.gather(1, order[:, :, None].expand(-1, -1, self.tokens.shape[2]))
        return _Pool(scores, self.log_probability.gather(1, order), tokens)


class _Search:
    """The hypotheses of B sentences of which `sentences` (their places in the batch) are not done."""

    def __init__(self, greatest_length: Tensor, beam: int, alpha: float) -> None:
        batch, device = len(greatest_length), greatest_length.device
        self.sentences = torch.arange(batch, device=device)
        self.results: list[list[Finished]] = [[] for _ in range(batch)]
        self._greatest_length = greatest_length
        self._beam, self._alpha = beam, alpha
        # One live hypothesis a sentence at first; the others are impossible, or all K would be the same.
        log_probability = torch.full((batch, beam), -torch.inf, device=device)
        log_probability[:, 0] = 0.0
        tokens = torch.full((batch, beam, 1), BOS, dtype=torch.long, device=device)
        self._alive = _Pool(log_probability, log_probability, tokens)
        nothing = torch.full_like(log_probability, -torch.inf)
        self._finished = _Pool(nothing, nothing, tokens)

    def newest_tokens(self) -> Tensor:
        """(B*K,) the last token of each live hypothesis."""
        return self._alive.tokens[:, :, -1].flatten()

    def extend(self, logits: Tensor) -> Tensor:
        """Put the best next tokens behind the live hypotheses.

        Args:
            logits: (B*K, V).

        Returns:
            (B, K) number, within its sentence, of the hypothesis that each new one continues.
        """
        total = self._next_log_probabilities(logits)
        vocab_size = total.shape[2]
        # Each hypothesis can end in one way, so among the 2K best at least K go on.
        log_probability, choice = total.flatten(1).topk(min(2 * self._beam, total[0].numel()), dim=1)
        parent, token = choice // vocab_size, choice % vocab_size
        history = self._alive.tokens.gather(1, parent[:, :, None].expand(-1, -1, self._alive.tokens.shape[2]))
        tokens = torch.cat((history, token[:, :, None]), dim=2)
        ended = token == EOS
        length = torch.tensor(tokens.shape[2] - 1, dtype=log_probability.dtype, device=tokens.device)
        scores = (log_probability / length_penalty(length, self._alpha)).masked_fill(~ended, -torch.inf)
        self._merge_finished(_Pool(scores, log_probability, tokens))
        going_on = log_probability.masked_fill(ended, -torch.inf)
        best, order = going_on.topk(self._beam, dim=1)
        self._alive = _Pool(best, best, tokens.gather(1, order[:, :, None].expand(-1, -1, tokens.shape[2])))
        return parent.gather(1, order)

    def drop_done(self, parents: Tensor) -> tuple[Tensor, Tensor | None]:
        """Take sentences that are done out of the search.

        Args:
            parents: (B, K) from `extend`.

        Returns:
            Rows of the model's state to keep, (B'*K,), and sentences to keep, (B',), or None where all stay.
        """
        length = self._alive.tokens.shape[2] - 1
        reachable = self._alive.scores[:, 0] / length_penalty(self._greatest_length.to(self._alive.scores.dtype), self._alpha)
        done = (self._finished.scores[:, 0] >= reachable) | (self._greatest_length <= length)
        rows = parents + torch.arange(len(parents), device=parents.device)[:, None] * self._beam
        if not bool(done.any()):
            return rows.flatten(), None
        for place in done.nonzero().flatten().tolist():
            self.results[int(self.sentences[place])] = self._collect(place)
        kept = (~done).nonzero().flatten()
        self.sentences, self._greatest_length = self.sentences[kept], self._greatest_length[kept]
        self._alive, self._finished = self._alive.select(kept), self._finished.select(kept)
        return rows[kept].flatten(), kept

    def _next_log_probabilities(self, logits: Tensor) -> Tensor:
        """(B, K, V) log-probability of each continued hypothesis; at the greatest length only the end token is possible."""
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
        step = exact.view(len(self.sentences), self._beam, -1)
        step[:, :, [PAD, UNK, BOS]] = -torch.inf
        length = self._alive.tokens.shape[2]
        must_end = (self._greatest_length <= length)[:, None, None]
        others = torch.arange(step.shape[2], device=step.device) != EOS
        return self._alive.log_probability[:, :, None] + step.masked_fill(must_end & others, -torch.inf)

    def _merge_finished(self, new: _Pool) -> None:
        old = self._finished
        padding = old.tokens.new_full((*old.tokens.shape[:2], new.tokens.shape[2] - old.tokens.shape[2]), PAD)
        self._finished = _Pool(
            torch.cat((old.scores, new.scores), dim=1),
            torch.cat((old.log_probability, new.log_probability), dim=1),
            torch.cat((torch.cat((old.tokens, padding), dim=2), new.tokens), dim=1),
        ).best(self._beam)

    def _collect(self, place: int) -> list[Finished]:
        pool = self._finished
        rows = zip(pool.tokens[place].tolist(), pool.log_probability[place].tolist(), pool.scores[place].tolist(), strict=True)
        return [
            Finished(tokens[1 : tokens.index(EOS) + 1], log_probability, score)
            for tokens, log_probability, score in rows
            if score > -torch.inf
        ]
