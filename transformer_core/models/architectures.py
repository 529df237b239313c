"""From sizes to a model."""

from transformer_core.models.convolutional import Convolutional
from transformer_core.models.recurrent import Bahdanau, Cho, Luong, Recurrent
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ModelSize, RecurrentSize, TransformerSize

_RECURRENT = {"simple": Recurrent, "cho": Cho, "bahdanau": Bahdanau, "luong": Luong}


def build(size: ModelSize, vocab_size: int) -> TranslationModel:
    """A new model of these sizes, its weights drawn from torch's random stream."""
    if isinstance(size, TransformerSize):
        return Transformer(size, vocab_size)
    if isinstance(size, RecurrentSize):
        return _RECURRENT[size.decoder](size, vocab_size)
    return Convolutional(size, vocab_size)
