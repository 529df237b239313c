"""Construction of models from their sizes, and their cost: parameters by part, FLOPs per token, memory of training."""

from collections import Counter
from pkgutil import resolve_name
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from transformer_core.models.translation import TranslationModel
from transformer_core.sizes import ModelSize, architectures

_BYTES_A_PARAMETER = 16  # Weights, gradients and Adam's two moments, in float32.
_TRAINING_PASSES = 3  # A backward pass takes twice the products of a forward pass.
_FLOPS_A_WEIGHT = 2 * _TRAINING_PASSES  # A multiplication and an addition.
# Parts of a stack: a parameter belongs to the first of these whose word is in its name.
_PARTS = ("norm", "attention", "feed_forward", "convolution")


class Cost(NamedTuple):
    """Cost of training."""

    flops_a_token: float  # Per target token, forward and backward; a multiplication and an addition are two.
    state_bytes: int  # Of weights, gradients and Adam's moments.
    activation_bytes_a_token: float  # Of tensors saved for the backward pass, per position of a micro-batch, in bf16 on a CPU.


def build(size: ModelSize, vocab_size: int) -> TranslationModel:
    """Return a new model of these sizes, with weights drawn from torch's default random generator."""
    return resolve_name(architectures()[size.architecture].model)(size, vocab_size)


def parameters_by_part(size: ModelSize, vocab_size: int) -> dict[str, int]:
    """Return the number of trainable parameters of each part of a model; a shared matrix is counted once."""
    with torch.device("meta"):
        model = build(size, vocab_size)
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        stack, *rest = name.replace("encoder_norm", "encoder.norm").replace("decoder_norm", "decoder.norm").split(".")
        kind = next((kind for kind in _PARTS if any(kind in word for word in rest)), None)
        parts[f"{stack}_{kind}" if kind and stack in ("encoder", "decoder") else stack] += parameter.numel()
    return dict(parts)


def cost_of_training(size: ModelSize, vocab_size: int, length: int) -> Cost:
    """Return the cost of training, measured in a forward pass over sentences of `length` tokens on either side.

    Only attention's FLOPs per token depend on the length; they grow with it.
    """
    from transformer_core.models.ops.choice import prepare_for_training  # No stage needs it for this.

    with torch.device("meta"):
        empty = build(size, vocab_size)
    parameters = sum(parameter.numel() for parameter in empty.parameters())
    model = empty.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.fill_(1)  # With 0 a parser would take all tokens for one word.
    sentences = torch.ones(1, length, dtype=torch.long)
    # The counter does not count fused attention on a CPU, so gradients are on, nor oneDNN's recurrent layers, so the model is float64.
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        model.double().project(model(sentences, sentences > 0, sentences))
    prepare_for_training(model.float(), torch.device("cpu"), "bf16")
    more, less = (_saved_bytes(model, sentences.expand(count, -1)) for count in (3, 1))
    return Cost(_TRAINING_PASSES * counter.get_total_flops() / length, parameters * _BYTES_A_PARAMETER, (more - less) / (2 * length))


def flops_a_token(model: TranslationModel) -> tuple[int, int]:
    """Return the FLOPs, forward and backward, per source token and per target token.

    Counted are products with the matrices of the modules `encoder` and `decoder` and of the projection. Attention's scores and weighted
    sums, which grow with the sentence, are left out, as is usual for MFU.
    """
    matrices = {name: weight.numel() for name, weight in model.named_parameters() if weight.dim() > 1}
    encoder, decoder = (sum(matrices[name] for name in matrices if name.startswith(stack)) for stack in ("encoder.", "decoder."))
    read = sum(matrices[name] for name in matrices if "cross_attention.key" in name or "cross_attention.value" in name)
    return _FLOPS_A_WEIGHT * (encoder + read), _FLOPS_A_WEIGHT * (decoder - read + model.output_weight.numel())


def _saved_bytes(model: TranslationModel, sentences: Tensor) -> int:
    """Return the bytes of tensors that a forward pass saves for the backward pass, including weights and their copies."""
    kept: dict[int, torch.UntypedStorage] = {}  # Alive, so that no later tensor gets the same address.

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        model(sentences, sentences > 0, sentences)
    return sum(storage.nbytes() for storage in kept.values())
