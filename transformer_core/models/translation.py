"""The interface of every architecture for training and decoding."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.errors import configuration_error
from transformer_core.models.embeddings import TokenEmbedding


class DecoderState(Protocol):
    """State of decoding of B sentences, a step at a time: with one hypothesis each at first, with K after a selection."""

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """Keep, repeat and reorder hypotheses.

        Args:
            hypotheses: (B'*K',) rows of hypotheses to go on with, each of them from its own sentence.
            sentences: (B',) sentences to keep; None keeps all.
        """


class TranslationModel(nn.Module, ABC):
    """A model of the next target token, given a source and the target tokens before it.

    Attributes:
        d_model: width of the output.
        embedding: of source tokens, and of all that shares its matrix.
        most_positions: most tokens on either side, None for any number.
        decoding_projection: replaces `output_weight` in `project` for decoding; None as trained.
    """

    d_model: int
    embedding: TokenEmbedding
    most_positions: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.decoding_projection: nn.Module | None = None

    @property
    def output_weight(self) -> Tensor:
        """The (V, D) matrix of the pre-softmax projection, which has no bias; the embedding's by default."""
        return self.embedding.weight

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.output_weight.device

    @abstractmethod
    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Read the source, then a whole shifted target (teacher forcing).

        Args:
            source: (B, S) token ids, end token included, padded on the right.
            source_mask: (B, S), True at real tokens.
            target: (B, T) token ids, each the token before the one to predict, padded on the right.

        Returns:
            (B, T, D): the input of `project`. Rows at target padding have no meaning.
        """

    @abstractmethod
    def start(self, source: Tensor, source_mask: Tensor) -> DecoderState:
        """Read (B, S) sources; each sentence has one hypothesis until a selection makes more of it."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Decode one more position and add it to the state, which came from `start`.

        Args:
            tokens: (B*K,) the newest token of each hypothesis, those of a sentence side by side.
            state: changed in place.

        Returns:
            (B*K, V) logits of the next token.
        """

    def attention_to_source(self) -> AbstractContextManager[list[Tensor]]:
        """Record the weights (B, H, K, S) of the last layer's attention to the source in each step of the block.

        Raises:
            UserError: exit code 78; the model has no such record.
        """
        raise configuration_error("the coverage penalty: needs the attention of a Transformer, and this model is none", "Set it to 0.")

    def project(self, x: Tensor) -> Tensor:
        """Pre-softmax linear map: (..., D) to logits (..., V)."""
        if self.decoding_projection is not None:
            logits: Tensor = self.decoding_projection(x)
            return logits
        return functional.linear(x, self.output_weight)


def as_autocast(x: Tensor) -> Tensor:
    """Return x in the low precision of autocast, or x itself where autocast is off."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
