"""The encoder-decoder (paper 3.1, Figure 1): whole targets for training, a step at a time for decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_core.models.attention import KeysAndValues, Neighbourhood, Visible
from transformer_core.models.dropout import Dropout
from transformer_core.models.embeddings import LearnedPositions, SinusoidalPositions, TokenEmbedding
from transformer_core.models.layers import DecoderLayer, EncoderLayer
from transformer_core.models.translation import TranslationModel, as_autocast
from transformer_core.presets import TransformerSize


@dataclass
class TransformerState:
    """What decoding a step at a time keeps of B sentences with K beams each.

    Attributes:
        encoded: for each layer, keys and values of the source, (B, H, S, d): once a sentence, not once a beam.
        mask: (B, 1, 1, S), True at real source tokens.
        past: for each layer, keys and values of the target so far, (B*K, H, T, d); empty before the first step.
    """

    encoded: list[KeysAndValues]
    mask: Tensor
    past: list[KeysAndValues]

    def select(self, beams: Tensor, sentences: Tensor | None) -> None:
        """Keep and reorder rows: `beams` (B'*K) indexes the rows of `past`; `sentences` (B') those of the source, None keeps all."""
        self.past = [KeysAndValues(key.index_select(0, beams), value.index_select(0, beams)) for key, value in self.past]
        if sentences is not None:
            self.encoded = [KeysAndValues(key.index_select(0, sentences), value.index_select(0, sentences)) for key, value in self.encoded]
            self.mask = self.mask.index_select(0, sentences)


class Transformer(TranslationModel):
    """N encoder and N decoder layers. Post-norm as in the paper, neither stack ends in a norm of its own; pre-norm, both do.

    One matrix stands behind source embedding, target embedding and projection (paper 3.4), or behind the last two, or none is shared.
    """

    def __init__(self, size: TransformerSize, vocab_size: int) -> None:
        super().__init__()
        self.size = size
        self.d_model = size.d_model
        self.most_positions = size.most_positions if size.positions == "learned" else None
        self.embedding = TokenEmbedding(vocab_size, size.d_model)
        self.target_embedding = None if size.tied == "all" else TokenEmbedding(vocab_size, size.d_model)
        self.projection = TokenEmbedding(vocab_size, size.d_model) if size.tied == "none" else None
        self.source_positions, self.target_positions = _positions(size), _positions(size)
        self.dropout = Dropout(size.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(size) for _ in range(size.layers))
        self.decoder = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))
        self.encoder_norm, self.decoder_norm = (nn.LayerNorm(size.d_model) if size.norm == "pre" else None for _ in range(2))

    @property
    def output_weight(self) -> Tensor:
        """(V, D) of the pre-softmax projection."""
        return (self.projection or self.target_embedding or self.embedding).weight

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """(B, S), (B, S), (B, T) to (B, T, D); see TranslationModel."""
        state = self.start(source, source_mask)
        x = self._embed_target(target, 0)
        visible = self._earlier(0, target.shape[1], target.device)
        for layer, encoded in zip(self._decoder_layers(), state.encoded, strict=True):
            x, _ = layer(x, None, visible, encoded, state.mask)
        return _normed(x, self.decoder_norm)

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """(B, S) token ids and their mask to the encoder's output, (B, S, D)."""
        r = self.size.neighbourhood
        visible: Visible = source_mask[:, None, None, :] if r is None else Neighbourhood.centred(source_mask, r)
        x = self._enter(self.embedding(source), self.source_positions(0, source.shape[1]))
        for layer in self.encoder:
            x = layer(x, visible)
        return _normed(x, self.encoder_norm)

    def start(self, source: Tensor, source_mask: Tensor) -> TransformerState:
        """Encode (B, S) sources and hold the keys and values that every decoder layer attends to."""
        memory = self.encode(source, source_mask)
        encoded = [layer.cross_attention.keys_and_values(memory) for layer in self._decoder_layers()]
        return TransformerState(encoded, source_mask[:, None, None, :], [])

    def step(self, tokens: Tensor, state: TransformerState) -> Tensor:
        """Decode one more position and add it to the state.

        Args:
            tokens: (B*K,) the newest token of each hypothesis.
            state: from `start`, K hypotheses a sentence side by side.

        Returns:
            (B*K, V) logits of the next token.
        """
        position = state.past[0].key.shape[2] if state.past else 0
        x = self._embed_target(tokens[:, None], position)
        visible = None if self.size.neighbourhood is None else self._earlier(position, 1, tokens.device)
        past: list[KeysAndValues | None] = [*state.past] or [None] * self.size.layers
        state.past = []
        for layer, before, encoded in zip(self._decoder_layers(), past, state.encoded, strict=True):
            x, own = layer(x, before, visible, encoded, state.mask)
            state.past.append(own)
        return self.project(_normed(x, self.decoder_norm)[:, 0])

    def _earlier(self, first: int, count: int, device: torch.device) -> Visible:
        """What each of `count` target positions from `first` on may see: itself and those before it, at most a neighbourhood."""
        if self.size.neighbourhood is not None:
            return Neighbourhood.before(first, count, self.size.neighbourhood, device)
        return torch.ones(count, first + count, dtype=torch.bool, device=device).tril(first)

    def _embed_target(self, target: Tensor, first: int) -> Tensor:
        embedding = self.target_embedding or self.embedding
        return self._enter(embedding(target), self.target_positions(first, target.shape[1]))

    def _enter(self, embedded: Tensor, positions: Tensor) -> Tensor:
        # So that on a CPU the residual stream stays in the low precision; on a GPU the first norm returns float32.
        return self.dropout(as_autocast(embedded + positions))

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]


def _positions(size: TransformerSize) -> nn.Module:
    return SinusoidalPositions(size.d_model) if size.positions == "sinusoidal" else LearnedPositions(size.most_positions, size.d_model)


def _normed(x: Tensor, norm: nn.Module | None) -> Tensor:
    return x if norm is None else norm(x)
