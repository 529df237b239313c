"""The encoder-decoder (paper 3.1, Figure 1): whole targets for training, one step at a time for decoding."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.attention import KeysAndValues, bias_of
from transformer_core.models.embeddings import LearnedPositions, SinusoidalPositions, TokenEmbedding
from transformer_core.models.layers import DecoderLayer, EncoderLayer, normed
from transformer_core.models.translation import TranslationModel, as_autocast
from transformer_core.presets import TransformerSize

_GROWTH = 8  # Number of target positions by which the cached keys and values grow.


@dataclass
class TransformerState:
    """State of decoding of B sentences with K hypotheses each.

    Hypotheses of a sentence share most of their past, so keys and values stay in the slot they were written to, and each hypothesis has a
    mask of the slots it sees. Selecting hypotheses then moves no key or value (selecting sentences copies theirs), and the K queries of a
    sentence need one matrix product with all its slots.
    """

    encoded: list[KeysAndValues]  # Of the source for each layer, (B, H, S, d): once per sentence, not per hypothesis.
    mask: Tensor  # (B, 1, 1, S), True at real source tokens.
    past: list[KeysAndValues]  # Of the target so far for each layer, (B, H, C, d): C slots, of which the first `used` are written.
    seen: Tensor  # (B, K, C), True at the slots that a hypothesis sees.
    used: int = 0  # Number of slots written so far.
    position: int = 0  # Number of target positions decoded so far.

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        if sentences is not None:
            self.encoded, self.past = (
                [KeysAndValues(*(part.index_select(0, sentences) for part in layer)) for layer in layers]
                for layers in (self.encoded, self.past)
            )
            self.mask = self.mask.index_select(0, sentences)
        self.seen = self.seen.flatten(0, 1).index_select(0, hypotheses).unflatten(0, (len(self.mask), -1))

    def open(self, hypotheses: int) -> slice:
        """Return slots for the next position of this many hypotheses per sentence; each hypothesis sees its own slot."""
        slots = slice(self.used, self.used + hypotheses)
        self.used, self.position = self.used + hypotheses, self.position + 1
        if self.used > self.seen.shape[2]:
            self.enlarge(_GROWTH * hypotheses)
        self.seen[:, :, slots] = torch.eye(hypotheses, dtype=torch.bool, device=self.seen.device)
        return slots

    def enlarge(self, room: int) -> None:
        """Add so many slots to each sentence."""
        # Padded with zeros, since unseen slots are multiplied by a weight of 0.
        self.past = [KeysAndValues(*(functional.pad(part, (0, 0, 0, room)) for part in layer)) for layer in self.past]
        self.seen = functional.pad(self.seen, (0, room))


def write(past: KeysAndValues, slots: slice | Tensor, newest: KeysAndValues) -> KeysAndValues:
    """Write keys and values of the newest position, (B, H, K, d), into these slots of a layer; return those of all slots."""
    past.key[:, :, slots], past.value[:, :, slots] = newest
    return past


class Transformer(TranslationModel):
    """An encoder and a decoder, of N layers each in the paper; with pre-norm each stack ends in a norm of its own.

    Source embedding, target embedding and projection share one matrix (paper 3.4), or only the last two do, or none.
    """

    def __init__(self, size: TransformerSize, vocab_size: int) -> None:
        super().__init__(size, vocab_size)
        self.size = size
        self.most_positions = size.most_positions if size.positions == "learned" else None
        self.target_embedding = None if size.tied == "all" else TokenEmbedding(vocab_size, size.d_model)
        self.projection = TokenEmbedding(vocab_size, size.d_model) if size.tied == "none" else None
        if size.output_bias:
            self.output_bias = nn.Parameter(torch.zeros(vocab_size))
        self.source_positions, self.target_positions = _positions(size), _positions(size)
        self.encoder = nn.ModuleList(EncoderLayer(size) for _ in range(size.depths[0]))
        self.decoder = nn.ModuleList(DecoderLayer(size) for _ in range(size.depths[1]))
        self.encoder_norm, self.decoder_norm = (nn.LayerNorm(size.d_model) if size.norm == "pre" else None for _ in range(2))

    @property
    def output_weight(self) -> Tensor:
        return (self.projection or self.target_embedding or self.embedding).weight

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        memory, source_mask = self.encode(source, source_mask)
        return self.decode_whole(self._embed_target(target, 0), memory, source_mask)

    def decode_whole(self, x: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
        """Decode embedded targets (B, T, D), given the encoder's outputs and their mask: (B, T, D)."""
        length = x.shape[1]
        # Each position sees itself and the positions before it (paper 3.2.3). Biases are computed once, not per layer.
        causal_bias = bias_of(torch.ones(length, length, dtype=torch.bool, device=x.device).tril(), x.dtype)
        source_bias = bias_of(source_mask[:, None, None, :], x.dtype)
        for layer in self.decoder_layers():
            x = layer(x, causal_bias, layer.cross_attention.keys_and_values(memory), source_bias)
        return normed(x, self.decoder_norm)

    def encode(self, source: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode (B, S) token ids and their mask to (B, S, D); return the mask of its positions, too."""
        return self.encode_embedded(self.embedding(source), source_mask)

    def encode_embedded(self, embedded: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode as `encode`, given an embedding (B, S, D) of each position."""
        x = self.with_positions(embedded, self.source_positions, 0)
        source_bias = bias_of(source_mask[:, None, None, :], x.dtype)
        for layer in self.encoder:
            x = layer(x, source_bias)
        return normed(x, self.encoder_norm), source_mask

    def start(self, source: Tensor, source_mask: Tensor) -> TransformerState:
        """Encode (B, S) sources and project the keys and values of every decoder layer."""
        return self.start_encoded(*self.encode(source, source_mask))

    def start_encoded(self, memory: Tensor, source_mask: Tensor) -> TransformerState:
        """Start as `start`, given the encoder's outputs (B, S, D) and their mask."""
        # Contiguous by head: otherwise each step's products with a few queries would copy them.
        projected = [layer.cross_attention.keys_and_values(memory) for layer in self.decoder_layers()]
        encoded = [KeysAndValues(layer.key.contiguous(), layer.value.contiguous()) for layer in projected]
        past = [KeysAndValues(layer.key[:, :, :0], layer.value[:, :, :0]) for layer in encoded]
        return TransformerState(encoded, source_mask[:, None, None, :], past, seen=source_mask.new_zeros(len(memory), 1, 0))

    def decode(self, tokens: Tensor, state: TransformerState) -> Tensor:
        slots = state.open(len(tokens) // len(state.mask))
        return self.decode_embedded(self._embed_target(tokens[:, None], state.position - 1), state, slots)

    def decode_embedded(self, x: Tensor, state: TransformerState, slots: slice | Tensor) -> Tensor:
        """Decode the position whose slots were opened last, given its embedded tokens (B*K, 1, D): (B*K, D)."""
        x = x.view(len(state.mask), -1, self.d_model)
        # Computed once per step, not per layer.
        seen_bias, source_bias = bias_of(state.seen[:, None], x.dtype), bias_of(state.mask, x.dtype)
        for layer, past, encoded in zip(self.decoder_layers(), state.past, state.encoded, strict=True):
            x = layer(x, seen_bias, encoded, source_bias, partial(write, past, slots))
        return normed(x, self.decoder_norm).flatten(0, 1)

    def decoder_layers(self) -> list[DecoderLayer]:
        """Return the layers of the decoder."""
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]

    def _embed_target(self, target: Tensor, first: int) -> Tensor:
        return self.with_positions((self.target_embedding or self.embedding)(target), self.target_positions, first)

    def with_positions(self, embedded: Tensor, positions: nn.Module | None, first: int) -> Tensor:
        """Return the input of a stack, (B, T, D): the dropout of embeddings plus positions (paper 3.4, 3.5, 5.4), from `first` on."""
        if positions is not None:
            embedded = embedded + positions(first, embedded.shape[1])
        # What runs through the layers then stays in the low precision.
        return self.dropout(as_autocast(embedded))


def _positions(size: TransformerSize) -> nn.Module | None:
    if size.positions == "none":
        return None
    return SinusoidalPositions(size.d_model) if size.positions == "sinusoidal" else LearnedPositions(size.most_positions, size.d_model)
