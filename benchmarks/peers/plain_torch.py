"""torch.nn.Transformer in a plain loop: compiled layers, fused attention, PyTorch's own cross-entropy and fused Adam."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from peers.job import LABEL_SMOOTHING, Job, Training, Updates, train_plainly
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.corpus.tokens.subword import PAD
from transformer_core.models.embeddings import sinusoidal_positions
from transformer_core.training.devices import autocast
from transformer_core.training.loader import make_batch

_POSITIONS = 256


class PlainTransformer(nn.Module):
    """The paper's model out of PyTorch's parts; their attention and their stacks have biases and final norms that the paper has not."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.embedding = nn.Embedding(job.vocab_size, job.d_model)
        nn.init.normal_(self.embedding.weight, std=job.d_model**-0.5)
        self.transformer = nn.Transformer(
            job.d_model, job.heads, job.layers, job.layers, job.d_ff, job.dropout, activation="relu", batch_first=True
        )
        self.register_buffer("positions", sinusoidal_positions(_POSITIONS, job.d_model), persistent=False)
        self.dropout = nn.Dropout(job.dropout)
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()  # Inside the feed-forward network, where the paper has none.

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        """Map (B, S) and (B, T) token ids to logits (B, T, V); `mask` is (B, S), True at real tokens."""
        padding = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -torch.inf)
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        decoded = self.transformer(
            self._embedded(source),
            self._embedded(target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return functional.linear(decoded, self.embedding.weight)

    def _embedded(self, tokens: Tensor) -> Tensor:
        scaled = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        embedded: Tensor = self.dropout(scaled + self.positions[: tokens.shape[1]])
        return embedded


def compiled(job: Job, device: torch.device) -> PlainTransformer:
    """Return a new model with compiled layers."""
    model = PlainTransformer(job).to(device)
    for layer in (*model.transformer.encoder.layers, *model.transformer.decoder.layers):
        layer.compile(dynamic=True)
    return model


def train(model: PlainTransformer, split: BinarizedSplit, updates: Updates, device: torch.device) -> Training:
    """Train on the pairs of each update."""
    loss = partial(_summed_loss, model, split, device=device)
    return train_plainly(model, loss, lambda pairs: int(split.target.lengths[pairs].sum()), updates, device)


def _summed_loss(model: PlainTransformer, split: BinarizedSplit, pairs: list[int], device: torch.device) -> Tensor:
    batch: Any = make_batch(split.pairs(np.array(pairs))).to(device)
    target = torch.full((batch.shifted.numel(),), PAD, device=device).index_copy(0, batch.target_positions, batch.targets)
    with autocast(device, "auto"):
        logits = model(batch.source, batch.source_mask, batch.shifted).flatten(0, 1)
        return functional.cross_entropy(logits, target, ignore_index=PAD, reduction="sum", label_smoothing=LABEL_SMOOTHING)
