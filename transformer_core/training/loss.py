"""Label-smoothed cross-entropy over the vocabulary, a slice of tokens at a time, so that no (tokens, V) float32 matrix ever stands.

The smoothed target puts 1 - eps on the true token and eps / (V - 1) on every other one: the definition of the authors' own code
(tensor2tensor). With c = 1 - eps - s and s = eps / (V - 1) the loss of a token is  logsumexp(z) - c * z_true - s * sum(z)  and its gradient
with respect to the logits z is  softmax(z) - s - c * onehot(true).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

_TOKENS_PER_SLICE = 512


class Loss(NamedTuple):
    """Sums over tokens, float32 scalars: the smoothed loss (differentiable), plain negative log-likelihood, tokens predicted right."""

    smoothed: Tensor
    nll: Tensor
    correct: Tensor


def cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float) -> Loss:
    """Project to logits and compare with the targets.

    Args:
        hidden: (n, D) decoder output at the n real target positions.
        weight: (V, D) of the pre-softmax projection.
        targets: (n,) token ids.
        label_smoothing: eps_ls, 0 for none (paper 5.4).
    """
    smoothed, nll, correct = _SlicedCrossEntropy.apply(hidden, weight, targets, label_smoothing)  # type: ignore[no-untyped-call]
    return Loss(smoothed, nll, correct)


class _SlicedCrossEntropy(Function):
    """Gradients are made in the forward pass, while a slice's softmax is at hand, and only scaled in the backward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        vocab_size = weight.shape[0]
        others = label_smoothing / (vocab_size - 1)
        truth = 1 - label_smoothing - others
        cast = weight.to(hidden.dtype)
        wants_gradient = any(ctx.needs_input_grad)
        hidden_gradient = torch.empty_like(hidden) if wants_gradient else None
        weight_gradient = torch.zeros_like(weight) if wants_gradient else None
        exact = torch.promote_types(hidden.dtype, torch.float32)
        smoothed, nll, correct = (torch.zeros((), dtype=exact, device=hidden.device) for _ in range(3))
        weight_sum = cast.sum(dim=0, dtype=exact)
        for start in range(0, len(targets), _TOKENS_PER_SLICE):
            slice_hidden, true = hidden[start : start + _TOKENS_PER_SLICE], targets[start : start + _TOKENS_PER_SLICE, None]
            logits = (slice_hidden @ cast.T).to(exact)
            probabilities = logits.softmax(dim=-1)
            # The largest probability is 1 / sum(exp(z - max z)), so this is the exact logsumexp without another pass of exponentials.
            largest, likeliest = logits.max(dim=-1, keepdim=True)
            normaliser = largest - probabilities.gather(1, likeliest).log()
            true_logit = logits.gather(1, true)
            nll += (normaliser - true_logit).sum()
            smoothed += (normaliser - truth * true_logit).sum() - others * (slice_hidden.to(exact) @ weight_sum).sum()
            correct += (likeliest == true).sum()
            if hidden_gradient is not None and weight_gradient is not None:
                gradient = probabilities.scatter_add_(1, true, torch.full_like(true_logit, -truth)).to(hidden.dtype)
                hidden_gradient[start : start + _TOKENS_PER_SLICE] = gradient @ cast - (others * weight_sum).to(hidden.dtype)
                weight_gradient += gradient.T @ slice_hidden
        if weight_gradient is not None:
            weight_gradient -= others * hidden.sum(dim=0, dtype=exact)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return smoothed, nll, correct

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient * upstream[0], weight_gradient * upstream[0], None, None
