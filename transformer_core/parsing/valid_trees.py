"""A parsing model whose search writes valid trees alone: one tree over all words of the sentence, each bracket closed by its own label."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from transformer_core.corpus.tokens.subword import EOS, SPACE_MARK, Subword
from transformer_core.decoding.hypotheses import StepModel
from transformer_core.models.translation import DecoderState
from transformer_core.parsing.trees import WORD_SYMBOL

_MOST_OPENED = 8  # Brackets opened one after the other, without a word between them.
_OPENING, _END = " (", " end"  # Kinds of symbols, which no symbol equals, since none has a space.


@dataclass(frozen=True)
class _Begun:
    """A tree as far as it is written."""

    words: int  # Number of words that are not in it yet.
    labels: tuple[str, ...] = ()  # Of the open constituents, the innermost last.
    opened: int = 0  # Brackets opened since the last word.
    last: str = ""  # The last symbol.
    in_order: bool = False

    def after(self, symbol: str) -> "_Begun":
        """Return the tree with one more symbol; other text changes nothing."""
        if symbol.startswith(WORD_SYMBOL):
            return _Begun(self.words - 1, self.labels, 0, WORD_SYMBOL, self.in_order or not self.last)
        if symbol.startswith("("):
            return _Begun(self.words, (*self.labels, symbol[1:]), self.opened + 1, symbol, self.in_order)
        if symbol.startswith(")"):
            return _Begun(self.words, self.labels[:-1], self.opened, symbol, self.in_order)
        return self

    @property
    def allowed(self) -> frozenset[str]:
        """The kinds of symbols that may come next: `_OPENING`, `_END`, and the word or closing bracket itself."""
        kinds, after_part, more = set(), not self.last.startswith("("), self.opened < _MOST_OPENED
        if more and (after_part if self.in_order else self.words > 0):
            kinds.add(_OPENING)
        if self.words > 0 and (self.labels or not self.last):
            kinds.add(WORD_SYMBOL)
        # Words that are left need an open constituent or, in order, one that can still be opened.
        if self.labels and (after_part or self.in_order) and (len(self.labels) > 1 or not self.words or (self.in_order and more)):
            kinds.add(f"){self.labels[-1]}")
        if not self.words and not self.labels and self.last != WORD_SYMBOL:
            kinds.add(_END)
        return frozenset(kinds)


@dataclass
class _State:
    """State of the model, and the begun tree of each hypothesis."""

    inner: DecoderState
    begun: list[_Begun]

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        self.inner.select(hypotheses, sentences)
        self.begun = [self.begun[row] for row in hypotheses.tolist()]


class ValidTrees:
    """A model whose logits are minus infinity for symbols that cannot come next."""

    def __init__(self, model: StepModel, subword: Subword) -> None:
        self._model = model
        self._symbols = [piece.removeprefix(SPACE_MARK) for piece in subword.pieces]
        # An opening bracket has a closing one.
        kinds = (_OPENING if symbol[:1] == "(" and f"){symbol[1:]}" in self._symbols else symbol for symbol in self._symbols)
        self._kinds = [WORD_SYMBOL if kind.startswith(WORD_SYMBOL) else kind for kind in kinds]
        self._kinds[EOS] = _END
        self._begins_word = torch.tensor(subword.begins_word)
        # Returns whether each token may not come next, (V,), given the kinds that may.
        self._forbidden_after = cache(lambda allowed: torch.tensor([kind not in allowed for kind in self._kinds]))

    def start(self, source: Tensor, source_mask: Tensor) -> _State:
        words = (self._begins_word.to(source.device)[source] & source_mask).sum(dim=1) - 1  # Without the end token.
        return _State(self._model.start(source, source_mask), [_Begun(count) for count in words.tolist()])

    def step(self, tokens: Tensor, state: _State) -> Tensor:
        """Decode the newest tokens (B*K,) to logits (B*K, V) of the next one."""
        logits = self._model.step(tokens, state.inner)
        state.begun = [begun.after(self._symbols[token]) for begun, token in zip(state.begun, tokens.tolist(), strict=True)]
        forbidden = torch.stack([self._forbidden_after(begun.allowed) for begun in state.begun])
        return logits.masked_fill(forbidden.to(logits.device), -torch.inf)
