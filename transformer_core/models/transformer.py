"""The encoder-decoder (paper 3.1, Figure 1): whole targets for training, one step at a time for decoding."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, Neighbourhood, Segments, Visible, bias_of
from transformer_core.models.embeddings import LearnedPositions, SinusoidalPositions, TokenEmbedding
from transformer_core.models.layers import DecoderLayer, EncoderLayer, FeedForward, Residual, Stream
from transformer_core.models.packing import Packed
from transformer_core.models.translation import TranslationModel, as_autocast
from transformer_core.presets import TransformerSize

LONGEST_OF_SHORT = 128  # Tokens of a sentence: one program of the kernel for short sentences holds all of its scores.
_WIDEST_OF_SHORT = 64  # Its d_k: a block of a wider one needs more shared memory than an Ada GPU has.
_WIDTHS = range(8, 257, 8)  # Of FlashAttention.
_ROOM = 8  # Number of target positions by which the buffers of keys and values grow.


@dataclass
class TransformerState:
    """State of decoding of B sentences with K hypotheses each.

    Hypotheses of a sentence share most of their past, so keys and values stay in the slot they were written to, and each hypothesis has a
    mask of the slots it sees. A selection then moves no key or value, and the K queries of a sentence need one matrix product with all
    its slots.

    Attributes:
        encoded: keys and values of the source for each layer, (B, H, S, d): once per sentence, not per hypothesis.
        mask: (B, 1, 1, S), True at real source tokens.
        past: keys and values of the target so far for each layer, (B, H, C, d): C slots, of which the first `used` are written.
        seen: (B, K, C), True at the slots that a hypothesis sees.
        positions: (C,) target position of each slot.
        used: number of slots written so far.
        position: number of target positions decoded so far.
        cursor: the same two numbers less one step, in tensors that each step advances, and the encodings of positions; see `fix`.
    """

    encoded: list[KeysAndValues]
    mask: Tensor
    past: list[KeysAndValues]
    seen: Tensor
    positions: Tensor
    used: int = 0
    position: int = 0
    cursor: "Cursor | None" = None

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        if sentences is not None:
            self.encoded, self.past = (
                [KeysAndValues(*(part.index_select(0, sentences) for part in layer)) for layer in layers]
                for layers in (self.encoded, self.past)
            )
            self.mask = self.mask.index_select(0, sentences)
        self.seen = self.seen.flatten(0, 1).index_select(0, hypotheses).unflatten(0, (len(self.mask), -1))

    def fix(self, positions: int, encodings: Callable[[int], Tensor]) -> None:
        """Reserve slots for so many more positions: until then no step moves a tensor, and a step that was captured can be replayed.

        `encodings` is that of the model.
        """
        hypotheses, device = self.seen.shape[1], self.seen.device
        capacity = -(-(self.used + positions * hypotheses) // _ROOM) * _ROOM
        self._enlarge(capacity - self.seen.shape[2])
        slots = torch.arange(self.used - hypotheses, self.used, device=device)
        self.cursor = Cursor(
            slots, torch.full((1,), self.position - 1, device=device), encodings(self.position + (capacity - self.used) // hypotheses)
        )

    def open(self, hypotheses: int) -> slice | Tensor:
        """Reserve slots for the next position of this many hypotheses per sentence; each hypothesis sees its own slot."""
        slots: slice | Tensor = slice(self.used, self.used + hypotheses)
        place: int | Tensor = self.position
        self.used, self.position = self.used + hypotheses, self.position + 1
        if self.cursor is not None:
            slots, place = self.cursor.slots.add_(hypotheses), self.cursor.place.add_(1)
        elif self.used > self.seen.shape[2]:
            self._enlarge(max(self.used - self.seen.shape[2], _ROOM * hypotheses))
        self.seen[:, :, slots] = torch.eye(hypotheses, dtype=torch.bool, device=self.seen.device)
        self.positions[slots] = place
        return slots

    def _enlarge(self, room: int) -> None:
        # Padded with zeros, since unseen slots are multiplied by a weight of 0.
        self.past = [KeysAndValues(*(functional.pad(part, (0, 0, 0, room)) for part in layer)) for layer in self.past]
        self.seen = functional.pad(self.seen, (0, room))
        self.positions = functional.pad(self.positions, (0, room))


@dataclass(frozen=True)
class Cursor:
    """Where a step is, in tensors: its slots (K,), its target position (1,), and encodings of positions (P, D)."""

    slots: Tensor
    place: Tensor
    encodings: Tensor


class Transformer(TranslationModel):
    """An encoder and a decoder, of N layers each in the paper; with pre-norm each stack ends in a norm of its own.

    Source embedding, target embedding and projection share one matrix (paper 3.4), or only the last two do, or none.

    Attributes:
        size: the architecture.
        can_pack: whether `packed` gives the same as `forward` in training.
    """

    def __init__(self, size: TransformerSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.size = size
        self.most_positions = size.most_positions if size.positions == "learned" else None
        self.target_embedding = None if size.tied == "all" else TokenEmbedding(vocab_size, size.d_model)
        self.projection = TokenEmbedding(vocab_size, size.d_model) if size.tied == "none" else None
        self.source_positions, self.target_positions = _positions(size), _positions(size)
        self.encoder = nn.ModuleList(EncoderLayer(size) for _ in range(size.depths[0]))
        self.decoder = nn.ModuleList(DecoderLayer(size) for _ in range(size.depths[1]))
        self.encoder_norm, self.decoder_norm = (nn.LayerNorm(size.d_model) if size.norm == "pre" else None for _ in range(2))
        # FlashAttention has neither a neighbourhood nor values of another width, and torch's has no dropout of packed sentences.
        self.can_pack = size.neighbourhood is None and size.attention_dropout == 0 and size.d_k == size.d_v and size.d_k in _WIDTHS
        self._has_kernels = False

    @property
    def output_weight(self) -> Tensor:
        return (self.projection or self.target_embedding or self.embedding).weight

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        memory = self.encode(source, source_mask)
        x = self._embed_target(target, 0)
        # Biases are computed once, not per layer.
        visible, mask = self._earlier(x), bias_of(source_mask[:, None, None, :], x.dtype)
        stream = Stream.of(x)
        for layer in self._decoder_layers():
            stream = layer(stream, visible, layer.cross_attention.keys_and_values(memory), mask)
        return _normed(stream.residual, self.decoder_norm)

    def packed(self, source: Packed, target: Packed) -> Tensor:
        """Return the same as `forward` for sentences without padding: (n, D), a row for each target token."""
        short = self._has_kernels and max(source.longest, target.longest) <= LONGEST_OF_SHORT
        x, visible = Stream.of(self._enter_packed(source, self.embedding, self.source_positions)), Segments(source, source, short=short)
        for layer in self.encoder:
            x = layer(x, visible)
        memory = _normed(x.residual, self.encoder_norm)
        x = Stream.of(self._enter_packed(target, self.target_embedding or self.embedding, self.target_positions))
        visible, of_source = Segments(target, target, causal=True, short=short), Segments(target, source, short=short)
        for layer in self._decoder_layers():
            x = layer(x, visible, layer.cross_attention.keys_and_values(memory), of_source)
        return _normed(x.residual, self.decoder_norm)[0]

    def use_kernels(self) -> None:
        """Have `packed` use the kernels of this package, which need Triton."""
        self._has_kernels = self.size.d_k <= _WIDEST_OF_SHORT
        for module in self.modules():
            if isinstance(module, Residual | FeedForward):
                module.has_kernel = True

    def _enter_packed(self, sentences: Packed, embedding: TokenEmbedding, positions: nn.Module | None) -> Tensor:
        """Return the input of a stack, (1, n, D)."""
        embedded = embedding(sentences.tokens[None])
        if isinstance(positions, SinusoidalPositions | LearnedPositions):
            embedded = embedded + positions.at(sentences.positions, sentences.longest)
        entered: Tensor = self.dropout(as_autocast(embedded))
        return entered

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Encode (B, S) token ids and their mask to (B, S, D)."""
        x = self._enter(self.embedding(source), self.source_positions, 0)
        r = self.size.neighbourhood
        visible: Visible = bias_of(source_mask[:, None, None, :], x.dtype) if r is None else Neighbourhood.centred(source_mask, r)
        stream = Stream.of(x)
        for layer in self.encoder:
            stream = layer(stream, visible)
        return _normed(stream.residual, self.encoder_norm)

    def start(self, source: Tensor, source_mask: Tensor) -> TransformerState:
        """Encode (B, S) sources and project the keys and values of every decoder layer."""
        memory = self.encode(source, source_mask)
        # Contiguous by head: otherwise each step's products with a few queries would copy them.
        projected = [layer.cross_attention.keys_and_values(memory) for layer in self._decoder_layers()]
        encoded = [KeysAndValues(layer.key.contiguous(), layer.value.contiguous()) for layer in projected]
        past = [KeysAndValues(layer.key[:, :, :0], layer.value[:, :, :0]) for layer in encoded]
        seen = source_mask.new_zeros(len(source), 1, 0)
        return TransformerState(encoded, source_mask[:, None, None, :], past, seen, torch.zeros(0, dtype=torch.long, device=source.device))

    def decode(self, tokens: Tensor, state: TransformerState) -> Tensor:
        slots = state.open(len(tokens) // len(state.mask))
        if state.cursor is None:
            x = self._embed_target(tokens[:, None], state.position - 1)
        else:
            embedded = (self.target_embedding or self.embedding)(tokens[:, None])
            x = as_autocast(embedded + state.cursor.encodings[state.cursor.place])
        x = x.view(len(state.mask), -1, self.d_model)
        visible = state.seen[:, None]
        if self.size.neighbourhood is not None:
            visible = visible & (state.positions >= state.position - self.size.neighbourhood)
        # Computed once per step, not per layer.
        visible, mask = bias_of(visible, x.dtype), bias_of(state.mask, x.dtype)
        stream = Stream.of(x)
        for layer, past, encoded in zip(self._decoder_layers(), state.past, state.encoded, strict=True):
            stream = layer(stream, visible, encoded, mask, past, slots)
        return _normed(stream.residual, self.decoder_norm).flatten(0, 1)

    def encodings(self, count: int) -> Tensor:
        """Return what is added to the embeddings of the first target positions, (count, D) or as many as the model has learned."""
        if self.target_positions is None:
            return self.output_weight.new_zeros(count, self.d_model)
        encodings: Tensor = self.target_positions(0, count)
        return encodings

    def _earlier(self, x: Tensor) -> Visible:
        """Return the bias or neighbourhood of a whole target, (B, T, D): each position sees itself and positions before it."""
        length = x.shape[1]
        if self.size.neighbourhood is not None:
            return Neighbourhood.before(length, self.size.neighbourhood, x.device)
        return bias_of(torch.ones(length, length, dtype=torch.bool, device=x.device).tril(), x.dtype)

    def _embed_target(self, target: Tensor, first: int) -> Tensor:
        embedding = self.target_embedding or self.embedding
        return self._enter(embedding(target), self.target_positions, first)

    def _enter(self, embedded: Tensor, positions: nn.Module | None, first: int) -> Tensor:
        """Return the input of a stack, given (B, T, D) embedded tokens whose first position is `first`."""
        if positions is not None:
            embedded = embedded + positions(first, embedded.shape[1])
        # The residual stream then stays in the low precision.
        return self.dropout(as_autocast(embedded))

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]


def _positions(size: TransformerSize) -> nn.Module | None:
    if size.positions == "none":
        return None
    return SinusoidalPositions(size.d_model) if size.positions == "sinusoidal" else LearnedPositions(size.most_positions, size.d_model)


def _normed(x: Tensor, norm: nn.Module | None) -> Tensor:
    """Return the norm of a stack's output, in autocast's low precision: on a GPU autocast computes it in float32."""
    return x if norm is None else as_autocast(norm(x))
