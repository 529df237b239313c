"""How large a model is: parameters by part, FLOPs a token, memory of a training."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from transformer_core.models.architectures import build
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ModelSize

# Weights, gradients and Adam's two moments, in float32.
_BYTES_A_PARAMETER = 16
# A backward pass takes twice the products of a forward pass.
_TRAINING_PASSES = 3
# The first word of these that a parameter's name holds says what part of its stack it belongs to.
_KINDS = ("norm", "attention", "feed_forward", "convolution")


@dataclass(frozen=True)
class Cost:
    """What training takes.

    Attributes:
        flops_a_token: floating-point operations a target token, forward and backward; a multiplication and an addition are two.
        state_bytes: weights, gradients and Adam's moments.
        activation_bytes_a_token: what the backward pass needs of the forward pass, for each position of a micro-batch, in bf16 on a CPU.
    """

    flops_a_token: float
    state_bytes: int
    activation_bytes_a_token: float


def parameters_by_part(size: ModelSize, vocab_size: int) -> dict[str, int]:
    """Trainable parameters of each part of a model, each shared matrix once."""
    with torch.device("meta"):
        model = build(size, vocab_size)
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[_part(name)] += parameter.numel()
    return dict(parts)


def cost_of_training(size: ModelSize, vocab_size: int, length: int) -> Cost:
    """Counted in a forward pass over sentences of `length` tokens on either side; the products of any length are the same but for
    those of attention, which grow with it.
    """
    with torch.device("meta"):
        empty = build(size, vocab_size)
    parameters = sum(parameter.numel() for parameter in empty.parameters())
    model = empty.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    sentences = torch.ones(1, length, dtype=torch.long)
    # The counter knows matrix products, but not the CPU's fused attention, which runs without gradients alone, nor oneDNN's recurrent
    # layer, which is not for float64.
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        model.double().project(model(sentences, sentences > 0, sentences))
    model.float()
    more, less = (_saved_bytes(model, sentences.expand(count, -1)) for count in (3, 1))
    return Cost(_TRAINING_PASSES * counter.get_total_flops() / length, parameters * _BYTES_A_PARAMETER, (more - less) / (2 * length))


def _saved_bytes(model: TranslationModel, sentences: Tensor) -> int:
    """What a forward pass keeps for the backward pass, weights and their copies included."""
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # An address is one tensor's only while it lives.

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        model(sentences, sentences > 0, sentences)
    return sum(kept.values())


def _part(name: str) -> str:
    stack, *rest = name.replace("encoder_norm", "encoder.norm").replace("decoder_norm", "decoder.norm").split(".")
    kind = next((kind for kind in _KINDS if any(kind in word for word in rest)), None)
    return f"{stack}_{kind}" if kind and stack in ("encoder", "decoder") else stack
