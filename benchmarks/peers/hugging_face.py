"""Hugging Face's Marian model in a plain PyTorch loop: ``python -m peers.hugging_face FOLDER``."""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn import functional
from transformers.models.marian.modeling_marian import MarianMTModel  # Not lazily, so that it is there before memory is read.

from peers.job import ADAM_BETAS, ADAM_EPSILON, LABEL_SMOOTHING, LEARNING_RATE, Job, Memory, Report, now, trained_parameters
from transformer_core.corpus.binary import BinarizedSplit, open_split
from transformer_core.corpus.subword import BOS, EOS, PAD
from transformer_core.models.precision import has_fast_bf16
from transformer_core.training.batch import make_batch
from transformer_core.training.devices import autocast

_MOST_POSITIONS = 256


def main() -> None:
    """Train for warm-up, train again with the clock running, report."""
    folder = Path(sys.argv[1])
    job = Job.read(folder)
    split = open_split(folder, "train")
    torch.set_num_threads(job.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    memory = Memory(device)
    torch.manual_seed(job.seed)
    model = MarianMTModel(_config(job)).to(device)  # type: ignore[arg-type]  # Its decorator hides whose method it is.
    _train(model, split, job.updates[: job.warm_up], device)
    seconds, target_tokens = _train(model, split, job.updates, device)
    Report(
        seconds=seconds,
        target_tokens=target_tokens,
        parameters=trained_parameters(model),
        precision="bf16" if has_fast_bf16(device) else "float32",
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
        before_bytes=memory.before_bytes,
        peak_bytes=memory.peak_bytes(),
    ).write(folder)


def _config(job: Job) -> transformers.MarianConfig:
    """Our architecture; what is left of the difference are biases on the attentions' projections."""
    return transformers.MarianConfig(
        vocab_size=job.vocab_size,
        d_model=job.d_model,
        encoder_layers=job.layers,
        decoder_layers=job.layers,
        encoder_attention_heads=job.heads,
        decoder_attention_heads=job.heads,
        encoder_ffn_dim=job.d_ff,
        decoder_ffn_dim=job.d_ff,
        activation_function="relu",
        dropout=job.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=_MOST_POSITIONS,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        attn_implementation=job.attention,  # type: ignore[call-arg]  # Any model's setting.
    )


def _train(model: MarianMTModel, split: BinarizedSplit, updates: list[list[list[int]]], device: torch.device) -> tuple[float, int]:
    """Seconds and target tokens of a whole training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=ADAM_BETAS, eps=ADAM_EPSILON)
    model.train()
    tokens = 0
    began = now(device)
    for microbatches in updates:
        tokens_of_update = sum(int(split.target.lengths[pairs].sum()) for pairs in microbatches)
        for pairs in microbatches:
            _add_gradients(model, split, pairs, tokens_of_update, device)
        optimizer.step()
        optimizer.zero_grad()
        tokens += tokens_of_update
    return now(device) - began, tokens


def _add_gradients(model: MarianMTModel, split: BinarizedSplit, pairs: list[int], tokens_of_update: int, device: torch.device) -> None:
    batch = make_batch(split.pairs(np.array(pairs))).to(device)
    target = torch.full((batch.shifted.numel(),), PAD, device=device).index_copy(0, batch.places, batch.truth)
    with autocast(device, "auto"):
        mask = batch.source_mask.long()
        logits = model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.shifted, use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), target, ignore_index=PAD, reduction="sum", label_smoothing=LABEL_SMOOTHING)
    (loss / tokens_of_update).backward()


if __name__ == "__main__":
    main()
