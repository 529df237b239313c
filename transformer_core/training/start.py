"""The model before its first update: random, or with what a trained model of another vocabulary has for it."""

from collections.abc import Sequence

import torch

from transformer_core.corpus.tokens.subword import Subword
from transformer_core.models.architectures import build
from transformer_core.models.translation import TranslationModel
from transformer_core.sizes import ModelSize
from transformer_core.training.update import seed_everything


def new_model(size: ModelSize, subword: Subword, seed: int) -> TranslationModel:
    """Return a model with random weights that depend on the seed alone."""
    seed_everything(seed, 0, 0)
    model = build(size, subword.vocab_size)
    model.read_vocabulary(subword.pieces)
    return model


def take_over(
    model: TranslationModel, parent: TranslationModel, size: ModelSize, pieces_of_parent: Sequence[str], pieces: Sequence[str]
) -> int:
    """Give a new model the weights of a trained one of the same sizes; rows of subwords that the parent lacks stay as they are.

    A subword that is spelt the same in both vocabularies, given by id, keeps its row of each matrix over the vocabulary (Nguyen and Chiang
    2017). Returns the number of these.
    """
    ids = {piece: number for number, piece in enumerate(pieces_of_parent)}
    rows = [number for number, piece in enumerate(pieces) if piece in ids]
    rows_of_parent = [ids[pieces[row]] for row in rows]
    larger = build(size, len(pieces) + 1).state_dict()
    trained = parent.state_dict()
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.shape == larger[name].shape:
                weight.copy_(trained[name])
            else:
                weight[rows] = trained[name][rows_of_parent]
    return len(rows)
