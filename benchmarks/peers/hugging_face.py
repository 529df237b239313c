"""Hugging Face's Marian in a plain PyTorch loop: ``python -m peers.hugging_face FOLDER``; a Transformer of ours as a model of theirs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from torch import Tensor, nn

from peers import plain_torch
from peers.job import Job
from transformer_core.corpus.tokens.subword import EOS, PAD, Subword, padded
from transformer_core.decoding.beam import Search
from transformer_core.decoding.hugging_face import config_of, export_model
from transformer_core.decoding.translator import batches_of
from transformer_core.models.directory import SUBWORD
from transformer_core.training.loader import Batch


class Marian(nn.Module):
    """A new model; the remaining difference to our architecture are biases on the attentions' projections."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        settings = config_of(job.setting.size, job.setting.vocab_size) | {"max_position_embeddings": plain_torch.POSITIONS}
        self.model = transformers.MarianMTModel(transformers.MarianConfig.from_dict(settings, attn_implementation=job.attention))

    def forward(self, batch: Batch) -> Tensor:
        """Map a batch to logits (B, T, V)."""
        mask = batch.source_mask.long()
        return self.model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.shifted, use_cache=False).logits


def decoder(directory: Path, search: Search, device: torch.device) -> Callable[[Sequence[list[int]], int], list[tuple[str, int]]]:
    """Return a function that translates token ids with `generate`, in bf16 and in the batches of our own translator."""
    with TemporaryDirectory() as folder:
        export_model(directory, Path(folder))
        model = transformers.MarianMTModel.from_pretrained(folder).eval().to(device, torch.bfloat16)
    subword = Subword.load(directory / SUBWORD)

    def translate(sources: Sequence[list[int]], batch_tokens: int) -> list[tuple[str, int]]:
        results = [("", 0)] * len(sources)
        for numbers in batches_of([len(source) for source in sources], batch_tokens):
            tokens = torch.from_numpy(padded([sources[number] for number in numbers])).to(device)
            outputs = model.generate(
                input_ids=tokens,
                attention_mask=(tokens != PAD).long(),
                num_beams=search.beam,
                length_penalty=search.alpha,
                early_stopping=False,
                max_new_tokens=tokens.shape[1] - 1 + search.max_extra,
            )
            for number, output in zip(numbers, outputs[:, 1:].tolist(), strict=True):
                length = output.index(EOS) + 1 if EOS in output else len(output)
                results[number] = (subword.decode(output[:length]), length)
        return results

    return translate


if __name__ == "__main__":
    plain_torch.run(Marian)
