"""A parsing model whose search writes valid trees alone: one tree over all words of the sentence, each bracket closed by its own label."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from transformer_core.corpus.tokens.subword import EOS, SPACE_MARK, Subword
from transformer_core.decoding.hypotheses import StepModel
from transformer_core.models.translation import DecoderState
from transformer_core.parsing.task import TASK
from transformer_core.parsing.trees import CLOSING, OPENING, OTHER, WORD, BegunTree, kind_of

_MOST_OPENED = 8  # Brackets opened one after the other, without a word between them.
_END = CLOSING + 1  # Kind of the end token.


@dataclass
class _State:
    """State of the model, and of each hypothesis the number of its sentence's words and the begun tree."""

    inner: DecoderState
    begun: list[tuple[int, BegunTree]]

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        self.inner.select(hypotheses, sentences)
        self.begun = [self.begun[row] for row in hypotheses.tolist()]


class ValidTrees:
    """A model whose logits are minus infinity for symbols that cannot come next."""

    def __init__(self, model: StepModel, subword: Subword) -> None:
        self._model = model
        symbols = [piece.removeprefix(SPACE_MARK) for piece in subword.pieces]
        self._kinds = [*map(kind_of, symbols)]
        self._kinds[EOS] = _END
        self._closing = {}  # The closing bracket of each opening one; one without it is no symbol.
        for token, symbol in enumerate(symbols):
            if self._kinds[token] == OPENING and f"){symbol[1:]}" in symbols:
                self._closing[token] = symbols.index(f"){symbol[1:]}")
            elif self._kinds[token] == OPENING:
                self._kinds[token] = OTHER
        self._begins_word = torch.tensor(subword.begins_word)
        self._forbidden = cache(self._forbidden_unless)

    def start(self, source: Tensor, source_mask: Tensor) -> _State:
        words = (self._begins_word.to(source.device)[source] & source_mask).sum(dim=1) - 1  # Without the end token.
        return _State(self._model.start(source, source_mask), [(count, BegunTree()) for count in words.tolist()])

    def step(self, tokens: Tensor, state: _State) -> Tensor:
        """Decode the newest tokens (B*K,) to logits (B*K, V) of the next one."""
        logits = self._model.step(tokens, state.inner)
        written = zip(state.begun, tokens.tolist(), strict=True)
        state.begun = [(words, tree.after(token, self._kinds[token])) for (words, tree), token in written]
        innermost = (self._closing[tree.open[-1][0]] if tree.open else None for _, tree in state.begun)
        kinds = (_allowed(tree, words) for words, tree in state.begun)
        forbidden = torch.stack([self._forbidden(*allowed) for allowed in zip(kinds, innermost, strict=True)])
        return logits.masked_fill(forbidden.to(logits.device), -torch.inf)

    def _forbidden_unless(self, kinds: frozenset[int], closing: int | None) -> Tensor:
        """Return whether each token may not come next, (V,), given the kinds that may, and the only closing bracket."""
        return torch.tensor([kind not in kinds or (kind == CLOSING and token != closing) for token, kind in enumerate(self._kinds)])


def _allowed(tree: BegunTree, words: int) -> frozenset[int]:
    """Return the kinds of symbols that may come next in a tree over so many words, which has at most `TASK.max_extra` more symbols."""
    kinds, after_part, left = set(), tree.last != OPENING, words - tree.written
    # Each open constituent, and one that is opened now, also has to be closed, and the end token counts.
    more = tree.opened < _MOST_OPENED and tree.length + left + len(tree.open) + 3 <= words + TASK.max_extra
    if more and (after_part if tree.in_order else left > 0):
        kinds.add(OPENING)
    if left > 0 and (tree.open or not tree.last):
        kinds.add(WORD)
    # Words that are left need an open constituent or, in order, one that can still be opened.
    if tree.open and (after_part or tree.in_order) and (len(tree.open) > 1 or not left or (tree.in_order and more)):
        kinds.add(CLOSING)
    if not left and not tree.open and tree.last != WORD:
        kinds.add(_END)
    return frozenset(kinds or {_END})  # Of a hypothesis that the search has dropped, whose logits must be finite somewhere.
