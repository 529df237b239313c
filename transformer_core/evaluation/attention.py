"""Attention weights of a model for a sentence pair: the data of the paper's Figures 3 to 5."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from statistics import median_low

import torch
from torch import Tensor, nn

from transformer_core.corpus.tokens.subword import BOS, Subword
from transformer_core.errors import configuration_error
from transformer_core.models.attention import KeysAndValues, MultiHeadAttention, attention_weights
from transformer_core.models.layers import EncoderLayer
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.pictures.attention_maps import AttentionMaps, Kind

# Numbers of pieces of a sentence, end token included: the range of lengths to choose, and the limit of a readable picture.
FEW_PIECES, MANY_PIECES, MOST_PIECES = 8, 20, 24


def choose_sentence(lengths: Sequence[tuple[int, int]]) -> int | None:
    """Choose the sentence to show: the first whose number of source pieces is nearest to the median, which is limited to 8..20.

    `lengths` are numbers of pieces of each source and of its translation, end tokens included. Returns the sentence's index, or None if no
    sentence has from 2 to 24 pieces on both sides.
    """
    fitting = [place for place, pair in enumerate(lengths) if all(2 <= length <= MOST_PIECES for length in pair)]
    if not fitting:
        return None
    wanted = min(max(median_low(source for source, _ in lengths), FEW_PIECES), MANY_PIECES)
    return min(fitting, key=lambda place: abs(lengths[place][0] - wanted))


def keeps_weights(model: TranslationModel) -> bool:
    """Return whether `attention_maps` supports a model; a convolutional one has attention, but its weights cannot be recorded."""
    if isinstance(model, Transformer):
        return not any(isinstance(each, MultiHeadAttention) and isinstance(each.attend, nn.Module) for each in model.modules())
    return model.attention is not None


def attention_maps(model: TranslationModel, subword: Subword, source: Sequence[int], target: Sequence[int]) -> AttentionMaps:
    """Return the weights of every attention while a model, in evaluation mode, reads a source and a given target.

    Source and target are token ids, end token included. A recurrent model has one map, of its decoder's attention to the source: one layer,
    one head. Raises `UserError` (78): the model has no attention, or is convolutional.
    """
    if not keeps_weights(model):
        raise configuration_error("this model keeps no attention weights; Transformers and recurrent models with attention do")
    read = [BOS, *target[:-1]]
    with torch.inference_mode():
        ids = [torch.tensor([tokens], device=model.output_weight.device) for tokens in (source, read)]
        weights = _transformer_weights(model, *ids) if isinstance(model, Transformer) else _weights_of_energies(model, *ids)
    source_pieces, read_pieces, predicted_pieces = (subword.processor.id_to_piece(list(tokens)) for tokens in (source, read, target))
    if len(source_pieces) != weights["cross"].shape[-1]:  # A parser has a position for each word.
        begins = (number for number, token in enumerate(source) if subword.begins_word[token])
        source_pieces = ["".join(source_pieces[begin:end]) for begin, end in pairwise([*begins, len(source)])]
    arrays = {kind: found.float().cpu().numpy() for kind, found in weights.items()}
    return AttentionMaps(source_pieces, read_pieces, predicted_pieces, arrays)


def _transformer_weights(model: Transformer, source: Tensor, read: Tensor) -> dict[Kind, Tensor]:
    """Return the weights of each kind, (N, H, rows, columns), for (1, S) and (1, T) token ids."""
    attentions: dict[Kind, list[MultiHeadAttention]] = {
        "encoder": [layer.self_attention for layer in model.encoder if isinstance(layer, EncoderLayer)],
        "decoder": [layer.self_attention for layer in model.decoder_layers()],
        "cross": [layer.cross_attention for layer in model.decoder_layers()],
    }
    found: dict[Kind, list[Tensor]] = {kind: [] for kind in attentions}

    def record(kind: Kind, _: nn.Module, inputs: tuple[Tensor, KeysAndValues, Tensor | None]) -> None:
        query, memory, mask = inputs
        found[kind].append(attention_weights(query, memory.key, mask))

    with ExitStack() as recording:
        for kind, layers in attentions.items():
            for attention in layers:
                recording.enter_context(attention.register_forward_pre_hook(partial(record, kind)))
        model(source, torch.ones_like(source, dtype=torch.bool), read)
    return {kind: torch.cat(weights) for kind, weights in found.items()}


def _weights_of_energies(model: TranslationModel, source: Tensor, read: Tensor) -> dict[Kind, Tensor]:
    """Return the softmax of each step's energies over the encoder's states, (1, 1, T, S), as the weights of attention to the source."""
    assert model.attention is not None
    steps: list[Tensor] = []
    with model.attention.register_forward_hook(lambda _module, _inputs, energies: steps.append(energies.softmax(dim=-1))):
        model(source, torch.ones_like(source, dtype=torch.bool), read)
    return {"cross": torch.cat(steps, dim=1)[None]}
