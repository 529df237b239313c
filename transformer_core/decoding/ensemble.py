"""Several models that translate together."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_core.errors import configuration_error
from transformer_core.models.translation import DecoderState, TranslationModel


@dataclass
class EnsembleState:
    """The states of all models."""

    states: list[DecoderState]

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        """As a DecoderState does."""
        for state in self.states:
            state.select(hypotheses, sentences)


class Ensemble:
    """The mean of the probabilities of models that share their vocabulary."""

    def __init__(self, models: Sequence[TranslationModel]) -> None:
        self._models = models
        self.most_positions = min((model.most_positions for model in models if model.most_positions is not None), default=None)

    @property
    def device(self) -> torch.device:
        """Where the models compute."""
        return self._models[0].device

    def start(self, source: Tensor, source_mask: Tensor) -> EnsembleState:
        """Read (B, S) sources."""
        return EnsembleState([model.start(source, source_mask) for model in self._models])

    def step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """(B*K,) newest tokens to (B*K, V) log-probabilities of the next."""
        steps = [model.step(tokens, part) for model, part in zip(self._models, state.states, strict=True)]
        exact = [logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=1) for logits in steps]
        return torch.stack(exact).logsumexp(dim=0) - math.log(len(exact))

    def attention_to_source(self) -> AbstractContextManager[list[Tensor]]:
        """Refused: the models' attentions to a source are of no common kind.

        Raises:
            UserError: exit code 78.
        """
        raise configuration_error("the coverage penalty: there is none for several models together", "Set it to 0, or name one model.")
