"""The Transformer as a parser: an encoder with a position for each word, and a decoder that reads where in the tree it is.

With fewer trees than the paper's 40,000, attention alone hardly learns which word the next symbol is about, and which brackets are open.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformer_core.corpus.tokens.subword import PAD, SPACE_MARK, begin_words
from transformer_core.models.transformer import Transformer, TransformerState
from transformer_core.parsing.sizes import ParserSize
from transformer_core.parsing.trees import BegunTree, kind_of


@dataclass(kw_only=True)
class ParserState(TransformerState):
    """State of decoding of B sentences with K hypotheses each."""

    memory: Tensor  # (B, W, D), the encoder's outputs.
    begun: list[BegunTree]  # Of each hypothesis.

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        super().select(hypotheses, sentences)
        self.begun = [self.begun[row] for row in hypotheses.tolist()]
        if sentences is not None:
            self.memory = self.memory.index_select(0, sentences)


class Parser(Transformer):
    """A Transformer that reads and writes words.

    The embedding of a source word is the sum of its tokens' embeddings. To these a linear map of the states of a bidirectional LSTM of two
    layers over them is added, below the encoder's layers (a cascaded encoder, Chen et al. 2018): few trees teach it sooner what a word's
    neighbours mean.

    To the embedding of each target token the encoder's output of the
    first word that is not written yet is added, after the last word that of the end token (deterministic attention, Liu et al. 2018), and a
    linear map of the innermost open bracket's embedding and of three other outputs: of the first word of its constituent, of the first word
    of the part that ended last, and of the word written last. For a bracket that is missing there are zeros, for a word the first one.
    """

    begins: Tensor  # (V,) 1 for each token that begins a word, and 0 for others, of the type of the weights, with which it is saved.
    kinds: Tensor  # (V,) likewise, the kind of each token in a tree (`kind_of`).

    def __init__(self, size: ParserSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.register_buffer("begins", torch.ones(vocab_size))
        self.register_buffer("kinds", torch.zeros(vocab_size))
        self.recurrent = nn.LSTM(size.d_model, size.d_model, 2, batch_first=True, bidirectional=True, dropout=size.dropout)
        self.of_states = nn.Linear(2 * size.d_model, size.d_model)
        self.of_stack = nn.Linear(4 * size.d_model, size.d_model, bias=False)

    def read_vocabulary(self, pieces: Sequence[str]) -> None:
        self.begins.copy_(torch.tensor(begin_words(pieces)))
        self.kinds.copy_(torch.tensor([kind_of(piece.removeprefix(SPACE_MARK)) for piece in pieces]))

    def encode(self, source: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (B, S) token ids and their mask to (B, W, D); return the mask of its W words, too."""
        begins = self.begins[source] > 0
        begins[:, 0] = True  # Whatever the first token is.
        words = (begins & source_mask).long().cumsum(dim=1)
        count = words[:, -1:]
        # The tokens of word w are added to row w, padding to row 0.
        rows = (words * source_mask)[:, :, None].expand(-1, -1, self.d_model)
        sums = self.begins.new_zeros(len(source), int(count.max()) + 1, self.d_model).scatter_add(1, rows, self.embedding(source))[:, 1:]
        with torch.autocast(source.device.type, enabled=False):  # CPUs have recurrent kernels for float32.
            packed = pack_padded_sequence(self.dropout(sums), count[:, 0].cpu(), batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        return self.encode_embedded(sums + self.of_states(self.dropout(states)), torch.arange(sums.shape[1], device=source.device) < count)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        memory, mask = self.encode(source, source_mask)
        begun: list[BegunTree] = []
        for tokens in zip(target.tolist(), self.kinds[target].tolist(), strict=True):
            begun += [*accumulate(zip(*tokens, strict=True), lambda tree, token: tree.after(*token), initial=BegunTree())][1:]
        x = self.with_positions(self._embedded(target, begun, memory, mask), self.target_positions, 0)
        return self.decode_whole(x, memory, mask)

    def start(self, source: Tensor, source_mask: Tensor) -> ParserState:
        """Encode (B, S) sources and project the keys and values of every decoder layer."""
        memory, mask = self.encode(source, source_mask)
        return ParserState(**vars(self.start_encoded(memory, mask)), memory=memory, begun=[BegunTree()] * len(source))

    def decode(self, tokens: Tensor, state: Any) -> Tensor:
        slots = state.open(len(tokens) // len(state.mask))
        written = zip(state.begun, tokens.tolist(), self.kinds[tokens].tolist(), strict=True)
        state.begun = [tree.after(token, kind) for tree, token, kind in written]
        x = self._embedded(tokens.view(len(state.mask), -1), state.begun, state.memory, state.mask.flatten(1)).flatten(0, 1)
        return self.decode_embedded(self.with_positions(x[:, None], self.target_positions, state.position - 1), state, slots)

    def _embedded(self, target: Tensor, begun: Iterable[BegunTree], memory: Tensor, mask: Tensor) -> Tensor:
        """Embed (B, T) target tokens, the last ones of as many begun trees, given the encoder's outputs (B, W, D) and their mask."""
        embedding = self.target_embedding or self.embedding
        rows = torch.tensor([*map(_read, begun)], device=target.device).view(*target.shape, 5)
        words, bracket = torch.minimum(rows[:, :, 1:].flatten(1), mask.sum(dim=1, keepdim=True) - 1), rows[:, :, 0]
        read = memory.gather(1, words[:, :, None].expand(-1, -1, self.d_model)).unflatten(1, (-1, 4))
        opened = embedding(bracket) * (bracket != PAD)[:, :, None]
        x: Tensor = embedding(target) + read[:, :, 0] + self.of_stack(torch.cat([opened, read[:, :, 1:].flatten(2)], dim=2))
        return x


def _read(tree: BegunTree) -> tuple[int, ...]:
    """Return what the decoder reads: the innermost open bracket, `PAD` if none is open, and four words, first the one that comes next."""
    bracket, first = tree.open[-1] if tree.open else (PAD, 0)
    return bracket, tree.written, first, tree.part, max(tree.written - 1, 0)
