"""A plain loop of PyTorch, with its own cross-entropy and Adam, and a torch.nn.Transformer for it: compiled layers, fused attention."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from peers.job import ADAM_BETAS, ADAM_EPSILON, LABEL_SMOOTHING, LEARNING_RATE, Job, Training, Updates, now
from transformer_core.corpus.tokens.binary import BinarizedSplit
from transformer_core.corpus.tokens.subword import PAD
from transformer_core.models.embeddings import sinusoidal_positions
from transformer_core.training.devices import autocast
from transformer_core.training.loader import Batch, make_batch

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

    def forward(self, batch: Batch) -> Tensor:
        """Map a batch to logits (B, T, V)."""
        mask = batch.source_mask
        padding = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, -torch.inf)
        causal = nn.Transformer.generate_square_subsequent_mask(batch.shifted.shape[1], device=mask.device)
        decoded = self.transformer(
            self._embedded(batch.source),
            self._embedded(batch.shifted),
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


def train(model: nn.Module, logits: Callable[[Batch], Tensor], split: BinarizedSplit, updates: Updates, device: torch.device) -> Training:
    """Train in a plain loop of PyTorch's on the pairs of each update; `logits` is the model's function from a batch to (B, T, V)."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=LEARNING_RATE, betas=ADAM_BETAS, eps=ADAM_EPSILON, fused=device.type == "cuda" or None
    )
    model.train()
    tokens = 0
    began = now(device)
    for microbatches in updates:
        tokens_of_update = sum(int(split.target.lengths[pairs].sum()) for pairs in microbatches)
        for pairs in microbatches:
            (_summed_loss(logits, make_batch(split.pairs(np.array(pairs))).to(device), device) / tokens_of_update).backward()
        optimizer.step()
        optimizer.zero_grad()
        tokens += tokens_of_update
    return Training(now(device) - began, tokens)


def _summed_loss(logits: Callable[[Batch], Tensor], batch: Batch, device: torch.device) -> Tensor:
    target = torch.full((batch.shifted.numel(),), PAD, device=device).index_copy(0, batch.target_positions, batch.targets)
    with autocast(device, "auto"):
        return functional.cross_entropy(
            logits(batch).flatten(0, 1), target, ignore_index=PAD, reduction="sum", label_smoothing=LABEL_SMOOTHING
        )
