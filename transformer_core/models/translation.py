"""What every architecture offers to training and to decoding."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.embeddings import TokenEmbedding


class DecoderState(Protocol):
    """What decoding a step at a time keeps of B sentences with K hypotheses each."""

    def select(self, beams: Tensor, sentences: Tensor | None) -> None:
        """Keep and reorder: `beams` (B'*K) numbers the hypotheses' rows to keep, `sentences` (B') the sentences, None keeps all."""


class TranslationModel(nn.Module, ABC):
    """A model of the next target token, given a source and the tokens before.

    Attributes:
        d_model: width of the output.
        embedding: of source tokens, and of whatever shares its matrix.
        most_positions: most tokens on either side, None for any number.
    """

    d_model: int
    embedding: TokenEmbedding
    most_positions: int | None = None

    @property
    def output_weight(self) -> Tensor:
        """(V, D) of the pre-softmax projection, which has no bias: the embedding's, unless a model says otherwise."""
        return self.embedding.weight

    @abstractmethod
    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Read the source, then a whole shifted target (teacher forcing).

        Args:
            source: (B, S) token ids, end token included, padded on the right.
            source_mask: (B, S), True at real tokens.
            target: (B, T) token ids, each the token before the one to predict, padded on the right.

        Returns:
            (B, T, D): what `project` turns into logits. Rows at target padding mean nothing.
        """

    @abstractmethod
    def start(self, source: Tensor, source_mask: Tensor) -> DecoderState:
        """Read (B, S) sources, for any number K of hypotheses a sentence."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Decode one more position and add it to the state, which came from `start`.

        Args:
            tokens: (B*K,) the newest token of each hypothesis, those of a sentence side by side.

        Returns:
            (B*K, V) logits of the next token.
        """

    def project(self, x: Tensor) -> Tensor:
        """Pre-softmax linear map: (..., D) to logits (..., V)."""
        return functional.linear(x, self.output_weight)


def as_autocast(x: Tensor) -> Tensor:
    """x in the low precision that autocast computes in, itself where autocast is off."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
