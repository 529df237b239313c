"""Small models, and directories of them, for tests of many components."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.corpus.encoded import learnt_subword
from transformer_core.config import Decode
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Hypothesis, Translator
from transformer_core.models.architectures import build
from transformer_core.models.directory import ModelConfig, Training, Vocabulary, save_model
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import TransformerSize
from transformer_core.sizes import ModelSize

TEXT = ["the dog sees a cat", "a cat sees the house", "der Hund sieht eine Katze", "eine Katze sieht das Haus"]
VOCAB = 40
SMALL = TransformerSize(layers=1, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.1)
UNTRAINED = Training(fingerprint="0", updates=0, target_tokens=0, seconds=0.0)


def write_model(
    model: TranslationModel,
    directory: Path,
    text: Sequence[str] = TEXT,
    training: Training = UNTRAINED,
    decode: Decode | None = None,
    target: str = "de",
    **settings: Any,
) -> Path:
    """Write the directory of a model over a vocabulary of its size, learnt from `text` (`VOCAB` for `TEXT`), and return it.

    `settings` are those of the vocabulary.
    """
    vocabulary = directory.parent / "spm.model"
    subword = learnt_subword(text, vocabulary, vocab_size=len(model.output_weight), **settings)
    size: Any = model.size
    named = Vocabulary(size=subword.vocab_size, hash=subword.hash)
    config = ModelConfig(model=size, vocabulary=named, source="en", target=target, training=training, decode=decode)
    save_model(directory, dict(model.state_dict()), config, vocabulary)
    return directory


def write_drawn(directory: Path, size: ModelSize = SMALL, seed: int = 1, vocab_size: int = VOCAB, **settings: Any) -> Path:
    """Write the directory of a model whose weights are drawn with this seed, and return it; `settings` as in `write_model`."""
    torch.manual_seed(seed)
    return write_model(build(size, vocab_size), directory, **settings)


def overflowing_in_fp16(model: TranslationModel) -> TranslationModel:
    """Enlarge weights of a pre-norm Transformer, so that activations are above 65,504, the largest number of fp16; float32 holds them."""
    with torch.no_grad():
        for parameter in model.get_submodule("encoder.0.feed_forward").parameters():
            parameter.mul_(3_000)
    return model


def with_drawn_norms(model: TranslationModel) -> TranslationModel:
    """Draw norms and biases, which start as ones and zeros and would hide one in the wrong place."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(mean=1.0, std=0.2)
    return model


def translations(
    translator: Translator, lines: Sequence[str], search: Search, batch_tokens: int = 4096, prefixes: Sequence[str] | None = None
) -> list[list[Hypothesis]]:
    """Those of each line, which may be made to begin with these words."""
    sources = [translator.subword.encode(line) for line in lines]
    starts = None if prefixes is None else [translator.subword.of_target.encode(prefix)[:-1] for prefix in prefixes]
    return translator.translate_tokens(sources, search, batch_tokens, starts)
