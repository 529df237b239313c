"""The interface of every architecture for training and decoding."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_core.models.embeddings import Dropout, TokenEmbedding
from transformer_core.sizes import ModelSize


class DecoderState(Protocol):
    """State of step-by-step decoding of B sentences, with one hypothesis each at first and K after a selection."""

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """Keep, repeat and reorder hypotheses.

        Args:
            hypotheses: (B'*K',) rows of the hypotheses to continue, those of a sentence side by side.
            sentences: (B',) indices of the sentences to keep; None keeps all.
        """


class TranslationModel(nn.Module, ABC):
    """A model of the next target token, given a source and the target tokens before it."""

    most_positions: int | None = None  # Largest number of tokens on either side; None for any number.

    def __init__(self, size: ModelSize, vocab_size: int) -> None:
        super().__init__()
        self.d_model = size.d_model  # Width of the output.
        self.embedding = TokenEmbedding(vocab_size, size.d_model)  # Of source tokens, and of everything that shares its matrix.
        self.dropout = Dropout(size.dropout)
        self.output_bias: Tensor | None = None  # (V,) bias of the pre-softmax projection; the paper has none.
        self.attention: nn.Module | None = None  # The only attention, if a module's outputs, (B, K, S), are its scores.

    @property
    def output_weight(self) -> Tensor:
        """The (V, D) matrix of the pre-softmax projection; by default the embedding's."""
        return self.embedding.weight

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.output_weight.device

    def read_vocabulary(self, pieces: Sequence[str]) -> None:
        """Learn what the model needs to know of the strings of its tokens, by id; most need nothing."""

    @abstractmethod
    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """Encode the source and decode a whole shifted target (teacher forcing).

        Args:
            source: (B, S) token ids, end token included, padded on the right.
            source_mask: (B, S), True at real tokens.
            target: (B, T) token ids, each the token before the one to predict, padded on the right.

        Returns:
            (B, T, D): the input of `project`. Rows at target padding have no meaning.
        """

    @abstractmethod
    def start(self, source: Tensor, source_mask: Tensor) -> DecoderState:
        """Encode (B, S) sources and return the state of decoding, with one hypothesis per sentence."""

    @abstractmethod
    def decode(self, tokens: Tensor, state: Any) -> Tensor:
        """Decode one more position.

        Args:
            tokens: (B*K,) the newest token of each hypothesis, those of a sentence side by side.
            state: state returned by `start`; changed in place.

        Returns:
            (B*K, D): the input of `project`.
        """

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Decode one more position as `decode`; return the logits of the next token, (B*K, V)."""
        return self.project(self.decode(tokens, state))

    def project(self, x: Tensor) -> Tensor:
        """Apply the pre-softmax linear map: (..., D) to logits (..., V)."""
        return functional.linear(x, self.output_weight, self.output_bias)

    def factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return two matrices whose product `a @ b.T` is `project(x)`, for (n, D): a bias is one more column of b, where a is 1."""
        if self.output_bias is None:
            return x, self.output_weight
        return functional.pad(x, (0, 1), value=1.0), torch.cat((self.output_weight, self.output_bias[:, None]), dim=1)


def as_autocast(x: Tensor) -> Tensor:
    """Return x in the low precision of autocast, or x itself if autocast is off."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
