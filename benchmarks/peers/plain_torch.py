"""A plain loop of PyTorch, with its own cross-entropy and Adam, and a torch.nn.Transformer: ``python -m peers.plain_torch FOLDER``."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from peers.job import Job, Updates, read_job, train_and_report
from transformer_core.corpus.tokens.binary import BinarizedSplit, open_split
from transformer_core.corpus.tokens.subword import PAD
from transformer_core.models.embeddings import sinusoidal_positions
from transformer_core.models.ops.packed import on_device
from transformer_core.models.precision import choose_kernels, low_precision, precision_name
from transformer_core.training.devices import autocast
from transformer_core.training.loader import Batch, make_batch

POSITIONS = 256


class PlainTransformer(nn.Module):
    """The paper's model out of PyTorch's parts, with compiled layers; they have biases and final norms that the paper has not."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        size = job.setting.size
        self.embedding = nn.Embedding(job.setting.vocab_size, size.d_model)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.transformer = nn.Transformer(
            size.d_model, size.heads, size.layers, size.layers, size.d_ff, size.dropout, activation="relu", batch_first=True
        )
        self.register_buffer("positions", sinusoidal_positions(POSITIONS, size.d_model), persistent=False)
        self.dropout = nn.Dropout(size.dropout)
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout = nn.Identity()  # Inside the feed-forward network, where the paper has none.
                module.compile(dynamic=True)

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
        return self.dropout(self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim) + self.positions[: tokens.shape[1]])


def run(make: Callable[[Job], nn.Module]) -> None:
    """Train the job's model, a module that maps a batch to logits (B, T, V), for warm-up and with the clock running; report."""
    folder, job = read_job()
    split = open_split(folder / "train")
    torch.set_num_threads(job.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    choose_kernels(device)
    torch.manual_seed(job.seed)
    model = make(job).to(device)
    precision = precision_name(low_precision(device, "auto") or torch.float32)
    train_and_report(folder, model, lambda: _train(model, split, job.updates, device), precision, device)


def _train(model: nn.Module, split: BinarizedSplit, updates: Updates, device: torch.device) -> int:
    # The paper's (5.3), as is the label smoothing (5.4). The learning rate, a usual one, does not change the speed.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=device.type == "cuda" or None)
    model.train()
    tokens = 0
    for microbatches in updates:
        tokens_of_update = sum(int(split.target.lengths[pairs].sum()) for pairs in microbatches)
        for pairs in microbatches:
            batch = on_device(make_batch(split.pairs(np.array(pairs))), device)
            target = torch.full((batch.shifted.numel(),), PAD, device=device).index_copy(0, batch.target_positions, batch.targets)
            with autocast(device, "auto"):
                logits = model(batch).flatten(0, 1)
                loss = functional.cross_entropy(logits, target, ignore_index=PAD, reduction="sum", label_smoothing=0.1)
            (loss / tokens_of_update).backward()
        optimizer.step()
        optimizer.zero_grad()
        tokens += tokens_of_update
    return tokens


if __name__ == "__main__":
    run(PlainTransformer)
