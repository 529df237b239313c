"""Small models in directories of their own, for tests of what reads such a directory."""

from pathlib import Path

from transformer_core.config import Bpe
from transformer_core.corpus.subword import Subword, train_subword
from transformer_core.models.convolutional import Convolutional
from transformer_core.models.directory import ModelConfig, Training, Vocabulary, save_model
from transformer_core.models.recurrent import Recurrent
from transformer_core.models.transformer import Transformer

TEXT = ["the dog sees a cat", "a cat sees the house", "der Hund sieht eine Katze", "eine Katze sieht das Haus"]
VOCAB = 40


def write_model(model: Transformer | Recurrent | Convolutional, directory: Path) -> Path:
    """The directory of a model over a vocabulary of `VOCAB` subwords learnt from `TEXT`."""
    settings = Bpe(init_from=None, vocab_size=VOCAB, type="bpe", character_coverage=1.0, sample=None, seed=1, user_symbols=[])
    vocabulary = directory.parent / "spm.model"
    train_subword(TEXT, vocabulary, settings)
    config = ModelConfig(
        model=model.size,
        vocabulary=Vocabulary(size=VOCAB, hash=Subword.load(vocabulary).hash),
        source="en",
        target="de",
        training=Training(fingerprint="0", updates=0, target_tokens=0, seconds=0.0),
    )
    save_model(directory, dict(model.state_dict()), config, vocabulary)
    return directory
