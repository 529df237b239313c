"""The one place that chooses how a model is computed: from device, precision and purpose. The results are those of the model's page."""

from dataclasses import dataclass, fields

import torch
from torch import nn

from transformer_core.config import Precision
from transformer_core.models.attention import Attend, MultiHeadAttention, scaled_dot_product_attention
from transformer_core.models.layers import DecoderLayer, EncoderLayer
from transformer_core.models.ops.packed_transformer import PackedTransformer
from transformer_core.models.ops.padded_attention import FusedSelfAttention, fused, in_float32, of_hypotheses
from transformer_core.models.precision import can_compile, from_ampere, low_precision
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import TransformerSize

# The sizes that `PackedTransformer` computes; attention has no dropout there, since torch's has none of packed sentences.
_PACKED_KEYS = frozenset({
    "architecture", "layers", "encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "d_k", "d_v", "dropout", "relu_dropout",
    "norm", "positions", "most_positions", "tied",
})  # fmt: skip
_WIDTHS = (*range(8, 193, 8), *range(232, 257, 8))  # Of FlashAttention; of those between, consumer GPUs have no backward pass.


@dataclass(frozen=True)
class TrainingOps:
    """How a training computes."""

    low: torch.dtype | None  # Number type of matrix products if it differs from that of the weights.
    # Computes micro-batches without padding, in the low precision; None where micro-batches are padded.
    packed: PackedTransformer | None = None
    captures: bool = False  # The passes over packed micro-batches are replayed as CUDA graphs.


def prepare_for_training(model: TranslationModel, device: torch.device, precision: Precision, passes: int = 1) -> TrainingOps:
    """Choose how to train a model, and set its attention; `passes` is `Train.passes`.

    - A CPU computes attention in float32.
    - A GPU has fused attention. From Ampere on, in bf16 or fp16, its micro-batches have no padding (FlashAttention). Where kernels can be
      compiled, Triton's take the place of PyTorch's between the matrix products, and CUDA graphs replay them, except with R-Drop, whose
      loss has no kernel.
    """
    low = low_precision(device, precision)
    _set_attention(model, fused if device.type == "cuda" else in_float32)
    if type(model) is not Transformer or low is None or not from_ampere(device) or not can_pack(model.size):
        return TrainingOps(low)
    kernels = can_compile(device)
    return TrainingOps(low, PackedTransformer(model, kernels), kernels and passes == 1)


def can_pack(size: TransformerSize) -> bool:
    """Return whether `PackedTransformer` and FlashAttention support a model of these sizes."""
    others = [field for field in fields(size) if field.name not in _PACKED_KEYS]
    return size.d_k == size.d_v and size.d_k in _WIDTHS and all(getattr(size, field.name) == field.default for field in others)


def prepare_for_decoding(model: TranslationModel) -> None:
    """Prepare a model, on its device, for decoding only.

    The three projections of each self-attention become one product. On a GPU attention is fused, and that of hypotheses gets a kernel if
    one can be compiled.
    """
    _set_attention(model, of_hypotheses if model.device.type == "cuda" else scaled_dot_product_attention)
    for module in model.modules():
        if isinstance(module, EncoderLayer | DecoderLayer):
            module.self_attention = FusedSelfAttention(module.self_attention)


def _set_attention(model: TranslationModel, attend: Attend) -> None:
    for module in model.modules():
        if isinstance(module, MultiHeadAttention) and not isinstance(module.attend, nn.Module):  # Another attention has no faster way.
            module.attend = attend
