"""The encoder-decoder (paper 3.1, Figure 1): whole targets for training, a step at a time for decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transformer_core.models.attention import KeysAndValues
from transformer_core.models.dropout import Dropout
from transformer_core.models.embeddings import SharedEmbedding
from transformer_core.models.layers import DecoderLayer, EncoderLayer
from transformer_core.presets import TransformerSize


@dataclass
class DecoderState:
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


class Transformer(nn.Module):
    """N encoder and N decoder layers over one shared embedding; post-norm, so neither stack ends in a norm of its own."""

    def __init__(self, size: TransformerSize, vocab_size: int) -> None:
        super().__init__()
        self.size = size
        self.embedding = SharedEmbedding(vocab_size, size.d_model)
        self.dropout = Dropout(size.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(size) for _ in range(size.layers))
        self.decoder = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Encode the source, then decode a whole shifted target at once (teacher forcing).

        Args:
            source: (B, S) token ids, end token included, padded on the right.
            source_mask: (B, S), True at real tokens.
            target: (B, T) token ids, each the token before the one to predict, padded on the right.

        Returns:
            (B, T, D): what `embedding.project` turns into logits. Rows at target padding mean nothing.
        """
        state = self.start(source, source_mask)
        x = self._embed(target)
        earlier = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).tril()
        for layer, encoded in zip(self._decoder_layers(), state.encoded, strict=True):
            x = layer(x, layer.self_attention.keys_and_values(x), earlier, encoded, state.mask)
        return x

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """(B, S) token ids and their mask to the encoder's output, (B, S, D)."""
        mask = source_mask[:, None, None, :]
        x = self._embed(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return x

    def start(self, source: Tensor, source_mask: Tensor) -> DecoderState:
        """Encode (B, S) sources and hold the keys and values that every decoder layer attends to."""
        memory = self.encode(source, source_mask)
        encoded = [layer.cross_attention.keys_and_values(memory) for layer in self._decoder_layers()]
        return DecoderState(encoded, source_mask[:, None, None, :], [])

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Decode one more position and add it to the state.

        Args:
            tokens: (B*K,) the newest token of each hypothesis.
            state: from `start`, K hypotheses a sentence side by side.

        Returns:
            (B*K, V) logits of the next token.
        """
        position = state.past[0].key.shape[2] if state.past else 0
        x = self._embed(tokens[:, None], position)
        past = []
        for number, (layer, encoded) in enumerate(zip(self._decoder_layers(), state.encoded, strict=True)):
            own = layer.self_attention.keys_and_values(x)
            if state.past:
                before = state.past[number]
                own = KeysAndValues(torch.cat((before.key, own.key), dim=2), torch.cat((before.value, own.value), dim=2))
            past.append(own)
            x = layer(x, own, None, encoded, state.mask)
        state.past = past
        return self.embedding.project(x[:, 0])

    def _embed(self, tokens: Tensor, first_position: int = 0) -> Tensor:
        x = self.embedding(tokens, first_position)
        # Under autocast the residual stream is held in the low precision too; norms still compute in float32 inside.
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return self.dropout(x)

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]
