"""Recurrent encoder-decoders with a fixed vector or with attention: the models before the Transformer.

`Recurrent` is a simplified form; `Cho`, `Bahdanau` and `Luong` have a decoder step in the order of their papers. All of them differ from
the papers in training and in the following: source, target and projection share one embedding, whose vectors are multiplied by
sqrt(d_model); the projection has no bias; dropout is on embeddings, between layers and before the projection; a GRU's reset gate
multiplies the product of the recurrent matrix and the state, as in cuDNN, not the state; all layers have the same width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformer_core.baselines.sizes import RecurrentSize
from transformer_core.models.translation import TranslationModel, as_autocast

Hidden = tuple[Tensor, ...]


@dataclass
class RecurrentState:
    """State of decoding of B sentences with K hypotheses each."""

    memory: Tensor  # (B, S, D), the encoder's states; for a Cho decoder (B, 1, D), its context vector.
    keys: Tensor  # (B, S, D), the memory that attention scores, projected for an additive one.
    mask: Tensor  # (B, S), True at real source tokens.
    hidden: list[Hidden]  # For each layer its output and, for an LSTM, its cell: (B*K, D).
    # (B*K, D), the last attentional state of a Luong decoder; None before the first step and in other decoders.
    attentional: Tensor | None = None

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        self.hidden = [tuple(part.index_select(0, hypotheses) for part in layer) for layer in self.hidden]
        if self.attentional is not None:
            self.attentional = self.attentional.index_select(0, hypotheses)
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

    def forward(self, state: Tensor, keys: Tensor) -> Tensor:
        """Score states (B, K, D) against keys (B, S, D): energies (B, K, S)."""
        return self.energy(torch.tanh(self.of_state(state)[:, :, None] + keys[:, None])).squeeze(-1)


class DotAttention(nn.Module):
    """state . memory (Luong et al. 2015, section 3.1)."""

    def forward(self, state: Tensor, keys: Tensor) -> Tensor:
        """Score states (B, K, D) against keys (B, S, D): energies (B, K, S)."""
        return state @ keys.transpose(1, 2)


class Recurrent(TranslationModel):
    """The simple decoder. Its initial states are the encoder's last states; with attention, its previous state selects the context.

    Encoder and decoder share one embedding, which is also the projection. Recurrences run in float32, because CPUs have kernels for it.
    """

    def __init__(self, size: RecurrentSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.size = size
        encoder, cell = (nn.LSTM, nn.LSTMCell) if size.cell == "lstm" else (nn.GRU, nn.GRUCell)
        self._directions = 2 if size.bidirectional else 1
        sizes, dropout = (size.d_model, size.d_model // self._directions, size.layers), size.dropout if size.layers > 1 else 0.0
        self.encoder = encoder(*sizes, batch_first=True, bidirectional=size.bidirectional, dropout=dropout)
        self.attention = {"none": None, "additive": AdditiveAttention(size.d_model), "dot": DotAttention()}[size.attention]
        read = 1 if size.decoder == "simple" and size.attention == "none" else 2
        maxout = size.decoder in ("cho", "bahdanau")
        self.decoder = nn.ModuleList(cell((read if layer == 0 else 1) * size.d_model, size.d_model) for layer in range(size.layers))
        # Maxout reads state, embedding and context, and returns the larger of each pair of outputs.
        self.combine = nn.Linear(3 * size.d_model, 2 * size.d_model) if maxout else nn.Linear(read * size.d_model, size.d_model)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        state = self.start(source, source_mask)
        with torch.autocast(source.device.type, enabled=False):
            embedded = self.dropout(self.embedding(target))
            outputs = torch.stack([self._advance(embedded[:, position], state) for position in range(target.shape[1])], dim=1)
        return as_autocast(outputs)

    def start(self, source: Tensor, source_mask: Tensor) -> RecurrentState:
        """Encode (B, S) sources; the memory has the order of the source, even if the source is read in reverse."""
        with torch.autocast(source.device.type, enabled=False):
            order = reversed_order(source_mask) if self.size.reverse_source else None
            embedded = self.dropout(self.embedding(source if order is None else source.gather(1, order)))
            packed = pack_padded_sequence(embedded, source_mask.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False)
            read, last = self.encoder(packed)
            memory, _ = pad_packed_sequence(read, batch_first=True, total_length=source.shape[1])
            if order is not None:
                memory = memory.gather(1, order[:, :, None].expand_as(memory))
            # Concatenate the directions of each layer: (layers * directions, B, D / directions) to (B, D) per layer.
            parts = [part.unflatten(0, (self.size.layers, self._directions)) for part in (last if isinstance(last, tuple) else (last,))]
            hidden = [tuple(torch.cat(part[layer].unbind(), dim=1) for part in parts) for layer in range(self.size.layers)]
            keys = self.attention.of_memory(memory) if isinstance(self.attention, AdditiveAttention) else memory
            return self._initial(RecurrentState(memory, keys, source_mask, hidden))

    def decode(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        return self._advance(self.embedding(tokens), state)

    def _initial(self, state: RecurrentState) -> RecurrentState:
        """Return the decoder's initial state, given a state with the encoder's last states."""
        return state

    def _advance(self, x: Tensor, state: RecurrentState) -> Tensor:
        """Advance one step from embedded tokens (B*K, D); set the new hidden states in `state`. Return (B*K, D)."""
        if self.attention is None:
            read = self._recur(x, state)
        else:
            context = self._context(state.hidden[-1][0], state)
            read = torch.cat((self._recur(torch.cat((x, context), dim=1), state), context), dim=1)
        return self.dropout(torch.tanh(self.combine(read)))

    def _context(self, query: Tensor, state: RecurrentState) -> Tensor:
        """Return the weighted sums of encoder states for queries (B*K, D), as (B*K, D)."""
        assert self.attention is not None
        grouped = query.view(len(state.memory), -1, query.shape[1])
        energies = self.attention(grouped, state.keys).masked_fill(~state.mask[:, None], -torch.inf)
        return (energies.softmax(dim=-1) @ state.memory).view_as(query)

    def _recur(self, x: Tensor, state: RecurrentState) -> Tensor:
        """Apply all recurrent layers to the input of the first; set the new hidden states in `state`. Return the last output, (B*K, D)."""
        hidden: list[Hidden] = []
        for number, (cell, before) in enumerate(zip(self.decoder, state.hidden, strict=True)):
            after = cell(x, before if self.size.cell == "lstm" else before[0])
            hidden.append(after if isinstance(after, tuple) else (after,))
            x = hidden[-1][0]
            if number + 1 < len(self.decoder):
                x = self.dropout(x)
        state.hidden = hidden
        return x


class Cho(Recurrent):
    """A context vector c as an input of every step (Cho et al. 2014, A.1): c = tanh(V h_N), s_0 = tanh(V' c), s_t = GRU(s_t-1, [y_t-1; c]).

    The output layer is maxout: t = max over pairs of O_s s_t + O_y y_t-1 + O_c c.
    """

    def __init__(self, size: RecurrentSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.summary = nn.Linear(size.d_model, size.d_model)
        self.initial = nn.ModuleList(nn.Linear(size.d_model, size.d_model) for _ in range(size.layers))

    def _initial(self, state: RecurrentState) -> RecurrentState:
        summary = torch.tanh(self.summary(state.hidden[-1][0]))
        # Stored as a memory of one position, so that `select` keeps it with its sentence.
        state.memory = state.keys = summary[:, None]
        state.hidden = [(torch.tanh(initial(summary)),) for initial in self.initial]
        return state

    def _advance(self, x: Tensor, state: RecurrentState) -> Tensor:
        context = state.memory.expand(-1, len(x) // len(state.memory), -1).reshape(x.shape)
        top = self._recur(torch.cat((x, context), dim=1), state)
        return self.dropout(_maxout(self.combine(torch.cat((top, x, context), dim=1))))


class Bahdanau(Recurrent):
    """Additive attention in the order of its paper (Bahdanau et al. 2015, A.2.2), with the encoder's states h_j.

    s_0 = tanh(W_s h_1) of the encoder's backward state h_1; the context c_i is the sum of h_j under the softmax of
    v . tanh(W_a s_i-1 + U_a h_j); s_i = GRU(s_i-1, [y_i-1; c_i]); t_i = max over pairs of U_o s_i-1 + V_o y_i-1 + C_o c_i.
    """

    def __init__(self, size: RecurrentSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.initial = nn.ModuleList(nn.Linear(size.d_model // 2, size.d_model) for _ in range(size.layers))

    def _initial(self, state: RecurrentState) -> RecurrentState:
        backward = [layer[0][:, self.d_model // 2 :] for layer in state.hidden]
        state.hidden = [(torch.tanh(initial(last)),) for initial, last in zip(self.initial, backward, strict=True)]
        return state

    def _advance(self, x: Tensor, state: RecurrentState) -> Tensor:
        previous = state.hidden[-1][0]
        context = self._context(previous, state)
        self._recur(torch.cat((x, context), dim=1), state)
        return self.dropout(_maxout(self.combine(torch.cat((previous, x, context), dim=1))))


class Luong(Recurrent):
    """Dot attention in the order of its paper, with input feeding (Luong et al. 2015, sections 3.1 and 3.3), global attention only.

    h_t = LSTM(h_t-1, [y_t-1; a_t-1]); the context c_t is the sum of the encoder's states under the softmax of their products with h_t;
    the attentional state a_t = tanh(W_c [c_t; h_t]) is projected and is an input of the next step; a_0 is zero.
    """

    def _advance(self, x: Tensor, state: RecurrentState) -> Tensor:
        fed = torch.zeros_like(x) if state.attentional is None else state.attentional
        top = self._recur(torch.cat((x, fed), dim=1), state)
        state.attentional = torch.tanh(self.combine(torch.cat((self._context(top, state), top), dim=1)))
        return self.dropout(state.attentional)


def recurrent_model(size: RecurrentSize, vocab_size: int) -> Recurrent:
    """Return a new model with the decoder of these sizes."""
    return {"simple": Recurrent, "cho": Cho, "bahdanau": Bahdanau, "luong": Luong}[size.decoder](size, vocab_size)


def reversed_order(mask: Tensor) -> Tensor:
    """Return indices (B, S) that reverse the tokens of each row but end token and padding (False in the mask); their own inverse."""
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = mask.sum(dim=1, keepdim=True) - 1
    return torch.where(positions < last, last - 1 - positions, positions)


def _maxout(pairs: Tensor) -> Tensor:
    """Return the maximum of each pair of neighbours (Goodfellow et al. 2013): (B*K, 2 D) to (B*K, D)."""
    return pairs.unflatten(1, (-1, 2)).amax(dim=2)
