"""The recurrent encoder-decoder, with a fixed vector alone or with attention: what the Transformer was compared with.

The encoder reads both ways (Bahdanau et al. 2015). The decoder starts from its last states: without attention they are all that it ever
learns of the source (Sutskever et al. 2014). With attention, the energy of a source position is a score of the decoder's previous state
against the encoder's state there; the softmax of these weights a sum of encoder states, which the next step reads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformer_core.models.dropout import Dropout
from transformer_core.models.embeddings import TokenEmbedding
from transformer_core.models.translation import TranslationModel, as_autocast
from transformer_core.presets import RecurrentSize

Hidden = tuple[Tensor, ...]


@dataclass
class RecurrentState:
    """What decoding keeps of B sentences with K hypotheses each.

    Attributes:
        memory: (B, S, D), the encoder's states.
        keys: (B, S, D), what they are scored by.
        mask: (B, S), True at real source tokens.
        hidden: for each layer, its output and, of an LSTM, its cell: (B*K, D).
    """

    memory: Tensor
    keys: Tensor
    mask: Tensor
    hidden: list[Hidden]

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """Keep and reorder, as a DecoderState does."""
        self.hidden = [tuple(part.index_select(0, hypotheses) for part in layer) for layer in self.hidden]
        if sentences is not None:
            self.memory, self.keys = self.memory.index_select(0, sentences), self.keys.index_select(0, sentences)
            self.mask = self.mask.index_select(0, sentences)


class AdditiveAttention(nn.Module):
    """v . tanh(W state + U memory) (Bahdanau et al. 2015, A.1.2)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.of_state = nn.Linear(d_model, d_model, bias=False)
        self.of_memory = nn.Linear(d_model, d_model, bias=False)
        self.energy = nn.Linear(d_model, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """What does not change from step to step: (B, S, D) to (B, S, D)."""
        keys: Tensor = self.of_memory(memory)
        return keys

    def forward(self, state: Tensor, keys: Tensor) -> Tensor:
        """(B, K, D) and (B, S, D) to energies (B, K, S)."""
        energies: Tensor = self.energy(torch.tanh(self.of_state(state)[:, :, None] + keys[:, None]))
        return energies.squeeze(-1)


class DotAttention(nn.Module):
    """state . memory (Luong et al. 2015, section 3.1)."""

    def keys(self, memory: Tensor) -> Tensor:
        """The memory itself, (B, S, D)."""
        return memory

    def forward(self, state: Tensor, keys: Tensor) -> Tensor:
        """(B, K, D) and (B, S, D) to energies (B, K, S)."""
        return state @ keys.transpose(1, 2)


class Recurrent(TranslationModel):
    """Both stacks over one shared embedding, which is the projection too. Recurrences run in float32, for which CPUs have kernels."""

    def __init__(self, size: RecurrentSize, vocab_size: int) -> None:
        super().__init__()
        self.size = size
        self.d_model = size.d_model
        self.embedding = TokenEmbedding(vocab_size, size.d_model)
        self.dropout = Dropout(size.dropout)
        encoder, cell = (nn.LSTM, nn.LSTMCell) if size.cell == "lstm" else (nn.GRU, nn.GRUCell)
        between_layers = size.dropout if size.layers > 1 else 0.0
        self.encoder = encoder(size.d_model, size.d_model // 2, size.layers, batch_first=True, bidirectional=True, dropout=between_layers)
        self.attention = {"none": None, "additive": AdditiveAttention(size.d_model), "dot": DotAttention()}[size.attention]
        read = 1 if self.attention is None else 2
        self.decoder = nn.ModuleList(cell((read if layer == 0 else 1) * size.d_model, size.d_model) for layer in range(size.layers))
        self.combine = nn.Linear(read * size.d_model, size.d_model)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """(B, S), (B, S), (B, T) to (B, T, D); see TranslationModel."""
        state = self.start(source, source_mask)
        with torch.autocast(source.device.type, enabled=False):
            embedded = self.dropout(self.embedding(target))
            outputs = torch.stack([self._advance(embedded[:, position], state) for position in range(target.shape[1])], dim=1)
        return as_autocast(outputs)

    def start(self, source: Tensor, source_mask: Tensor) -> RecurrentState:
        """Read (B, S) sources both ways."""
        with torch.autocast(source.device.type, enabled=False):
            embedded = self.dropout(self.embedding(source))
            packed = pack_padded_sequence(embedded, source_mask.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False)
            read, last = self.encoder(packed)
            memory, _ = pad_packed_sequence(read, batch_first=True, total_length=source.shape[1])
            parts = last if isinstance(last, tuple) else (last,)
            # Of layer l, both directions stand side by side: (2 * layers, B, D/2) to (B, D) a layer.
            hidden = [
                tuple(torch.cat((part[2 * layer], part[2 * layer + 1]), dim=1) for part in parts) for layer in range(self.size.layers)
            ]
            keys = memory if self.attention is None else self.attention.keys(memory)
        return RecurrentState(memory, keys, source_mask, hidden)

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """Decode one more position and add it to the state: (B*K,) newest tokens to (B*K, V) logits."""
        return self.project(self._advance(self.embedding(tokens), state))

    def _advance(self, x: Tensor, state: RecurrentState) -> Tensor:
        """One step of all layers from embedded tokens (B*K, D); leaves the new hidden states in `state`. Returns (B*K, D)."""
        context = self._context(state)
        if context is not None:
            x = torch.cat((x, context), dim=1)
        hidden: list[Hidden] = []
        for number, (cell, before) in enumerate(zip(self.decoder, state.hidden, strict=True)):
            after = cell(x, before if self.size.cell == "lstm" else before[0])
            hidden.append(after if isinstance(after, tuple) else (after,))
            x = hidden[-1][0]
            if number + 1 < len(self.decoder):
                x = self.dropout(x)
        state.hidden = hidden
        if context is not None:
            x = torch.cat((x, context), dim=1)
        return self.dropout(torch.tanh(self.combine(x)))

    def _context(self, state: RecurrentState) -> Tensor | None:
        """(B*K, D) weighted sums of encoder states, None without attention."""
        if self.attention is None:
            return None
        top = state.hidden[-1][0]
        grouped = top.view(len(state.memory), -1, self.d_model)
        energies = self.attention(grouped, state.keys).masked_fill(~state.mask[:, None], -torch.inf)
        return (energies.softmax(dim=-1) @ state.memory).view_as(top)
