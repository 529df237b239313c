"""A model restricted to the shortlists of a batch of sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from transformer_core.models.translation import DecoderState, TranslationModel


@dataclass
class _State:
    """State of the model, and (B, 1, U) what is added to the logits of each sentence: 0, or minus infinity."""

    inner: DecoderState
    mask: Tensor

    def select(self, hypotheses: Tensor, sentences: Tensor | None) -> None:
        self.inner.select(hypotheses, sentences)
        if sentences is not None:
            self.mask = self.mask[sentences]


class Shortlisted:
    """A model whose logits are over the shortlists of the sentences of a batch: column u is the subword `ids[u]`.

    One product serves the union of the shortlists. Then a mask leaves each sentence its own, so its translation does not depend on the
    batch. The first four columns are the special tokens, as in the whole vocabulary.

    Attributes:
        ids: (U,) token ids, ascending.
    """

    def __init__(self, model: TranslationModel, lists: Sequence[NDArray[np.int64]]) -> None:
        union = np.unique(np.concatenate(lists))
        allowed = np.zeros((len(lists), len(union)), np.bool_)
        for row, ids in zip(allowed, lists, strict=True):
            row[np.searchsorted(union, ids)] = True
        self._model = model
        self.ids = torch.from_numpy(union).to(model.device)
        self._allowed = torch.from_numpy(allowed).to(model.device)
        self._weight = model.output_weight.detach()[self.ids]
        self._bias = None if model.output_bias is None else model.output_bias.detach()[self.ids]

    def start(self, source: Tensor, source_mask: Tensor) -> _State:
        state = self._model.start(source, source_mask)
        logits = torch.zeros(self._allowed.shape, dtype=self._model.output_weight.dtype, device=self.ids.device)
        return _State(state, logits.masked_fill(~self._allowed, -torch.inf)[:, None])

    def step(self, columns: Tensor, state: _State) -> Tensor:
        """Decode the newest tokens (B*K,), as columns, to logits (B*K, U) of the next one."""
        logits = functional.linear(self._model.decode(self.ids[columns], state.inner), self._weight, self._bias)
        return (logits.unflatten(0, (len(state.mask), -1)) + state.mask).flatten(0, 1)
