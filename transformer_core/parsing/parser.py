"""The Transformer as a parser: an encoder with a position for each word, and a decoder that reads the word that comes next in the tree.

With fewer trees than the paper's 40,000, attention alone hardly learns which word the next symbol is about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_core.corpus.tokens.subword import SPACE_MARK, begin_words
from transformer_core.models.transformer import Transformer, TransformerState
from transformer_core.parsing.sizes import ParserSize
from transformer_core.parsing.trees import WORD_SYMBOL


@dataclass(kw_only=True)
class ParserState(TransformerState):
    """State of decoding of B sentences with K hypotheses each."""

    memory: Tensor  # (B, W, D), the encoder's outputs.
    written: Tensor  # (B*K,) number of words in each begun tree.

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        super().select(hypotheses, sentences)
        self.written = self.written.index_select(0, hypotheses)
        if sentences is not None:
            self.memory = self.memory.index_select(0, sentences)


class Parser(Transformer):
    """A Transformer that reads and writes words.

    The embedding of a source word is the sum of its tokens' embeddings. To the embedding of each target token the encoder's output of the
    first word that is not written yet is added, after the last word that of the end token (deterministic attention, Liu et al. 2018).
    """

    begins: Tensor  # (V,) 1 for each token that begins a word, and 0 for others, of the type of the weights, with which it is saved.
    writes: Tensor  # (V,) likewise, 1 for the symbol of a word in a tree.

    def __init__(self, size: ParserSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.register_buffer("begins", torch.ones(vocab_size))
        self.register_buffer("writes", torch.zeros(vocab_size))

    def read_vocabulary(self, pieces: Sequence[str]) -> None:
        self.begins.copy_(torch.tensor(begin_words(pieces)))
        self.writes.copy_(torch.tensor([piece.startswith(SPACE_MARK + WORD_SYMBOL) for piece in pieces]))

    def encode(self, source: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (B, S) token ids and their mask to (B, W, D); return the mask of its W words, too."""
        begins = self.begins[source] > 0
        begins[:, 0] = True  # Whatever the first token is.
        words = (begins & source_mask).long().cumsum(dim=1)
        count = words[:, -1:]
        # The tokens of word w are added to row w, padding to row 0.
        rows = (words * source_mask)[:, :, None].expand(-1, -1, self.d_model)
        sums = self.begins.new_zeros(len(source), int(count.max()) + 1, self.d_model).scatter_add(1, rows, self.embedding(source))[:, 1:]
        return self.encode_embedded(sums, torch.arange(sums.shape[1], device=source.device) < count)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        memory, mask = self.encode(source, source_mask)
        written = (self.writes[target] > 0).cumsum(dim=1)
        return self.decode_whole(self._input(target, 0, self._next_words(memory, mask, written)), memory, mask)

    def start(self, source: Tensor, source_mask: Tensor) -> ParserState:
        """Encode (B, S) sources and project the keys and values of every decoder layer."""
        memory, mask = self.encode(source, source_mask)
        return ParserState(**vars(self.start_encoded(memory, mask)), memory=memory, written=source.new_zeros(len(source)))

    def decode(self, tokens: Tensor, state: Any) -> Tensor:
        slots = state.open(len(tokens) // len(state.mask))
        state.written = state.written + (self.writes[tokens] > 0)
        read = self._next_words(state.memory, state.mask.flatten(1), state.written.view(len(state.mask), -1))
        return self.decode_embedded(self._input(tokens[:, None], state.position - 1, read.flatten(0, 1)[:, None]), state, slots)

    def _next_words(self, memory: Tensor, mask: Tensor, written: Tensor) -> Tensor:
        """Return the outputs (B, T, D) of the words after the first `written`, (B, T), given those of all words (B, W, D) and a mask."""
        rows = torch.minimum(written, mask.sum(dim=1, keepdim=True) - 1)
        return memory.gather(1, rows[:, :, None].expand(-1, -1, self.d_model))

    def _input(self, target: Tensor, first: int, read: Tensor) -> Tensor:
        return self.with_positions((self.target_embedding or self.embedding)(target) + read, self.target_positions, first)
