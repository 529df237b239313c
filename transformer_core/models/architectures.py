"""From sizes to a model."""

from transformer_core.models.convolutional import Convolutional
from transformer_core.models.recurrent import Recurrent
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ModelSize, RecurrentSize, TransformerSize


def build(size: ModelSize, vocab_size: int) -> TranslationModel:
    """A new model of these sizes, its weights drawn from torch's random stream."""
    if isinstance(size, TransformerSize):
        return Transformer(size, vocab_size)
    return Recurrent(size, vocab_size) if isinstance(size, RecurrentSize) else Convolutional(size, vocab_size)
