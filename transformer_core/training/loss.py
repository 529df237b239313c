"""Label-smoothed cross-entropy and R-Drop over the vocabulary, one slice of tokens at a time, to avoid a (tokens, V) float32 matrix.

The smoothed target puts 1 - eps on the true token and eps / (V - 1) on every other one, as the authors' own code does (tensor2tensor).
torch's `cross_entropy(label_smoothing=e)` puts 1 - e + e / V and e / V there, so it is the same loss at e = eps * V / (V - 1); this one is
faster (77 ms against 123 ms, on a CPU).

With c = 1 - eps - s and s = eps / (V - 1), the loss of a token is  logsumexp(z) - c * z_target - s * sum(z)  and its gradient with respect
to the logits z is  softmax(z) - s - c * onehot(targets).

R-Drop (Liang et al. 2021, section 2) has two passes over a token, with different dropout, whose logits z1, z2 give the distributions p1,
p2. Its loss  L1 + L2 + alpha / 2 * (KL(p1 || p2) + KL(p2 || p1))  has the losses L1, L2 above. Half of it is minimised, so that with
alpha = 0 it is the mean of the two, and a learning rate has the same meaning as without R-Drop.

Let d = z1 - z2. It differs from log(p1 / p2) by the same number for the whole vocabulary, and p1 and p2 have the same sum, so the two
divergences add up to J = sum((p1 - p2) * d). The derivative of J with respect to p1 is log(p1 / p2) + 1 - p2 / p1. A gradient h with
respect to a softmax p is p * (h - sum(p * h)) with respect to its logits, where a constant in h cancels. So

    u1 = p2 - p1 * d    dJ/dz1 = p1 * sum(u1) - u1    sum(u1) = 1 - sum(p1 * d)
    u2 = p1 + p2 * d    dJ/dz2 = p2 * sum(u2) - u2    sum(u2) = 1 + sum(p2 * d)    J = 2 - sum(u1) - sum(u2)

No logarithm of a probability is computed.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from transformer_core.models.precision import can_compile

_ROWS_PER_SLICE = 2048
_ROWS_PER_SLICE_OF_GPU = 8192
_MULTIPLE_OF_GPU = 8  # Columns of logits: rows in bf16 then begin at multiples of 16 bytes, which tensor cores need to be fast.
_ROUND = 64
_CACHED = 1 << 19  # float32 logits that a CPU works on at a time: 2 MiB.
_MOST_NLL = 100.0  # Of a model that is far worse than chance; `math.exp` overflows at 710.


class Loss(NamedTuple):
    """Sums over tokens, scalars in at least float32; of R-Drop's two passes the mean."""

    objective: Tensor  # What training minimises, differentiable: the label-smoothed loss, and with R-Drop also its divergence.
    smoothed: Tensor  # Label-smoothed loss.
    nll: Tensor  # Negative log-likelihood.
    correct: Tensor  # Tokens predicted correctly; 0 if gradients are on, since on a CPU the argmax takes longer than the softmax.


def cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, alpha: float = 0.0) -> Loss:
    """Return the loss of the logits `hidden @ weight.T`; with two passes R-Drop's, halved (Liang et al. 2021, section 2).

    Args:
        hidden: (n, D) decoder output at the n real target positions; (2n, D) of R-Drop's first pass and then of its second.
        weight: (V, D) matrix of the pre-softmax projection.
        targets: (n,) token ids; for the kernel (ops/logits_kernels.py) -1 marks filling, which has no loss.
        label_smoothing: eps_ls (paper 5.4); 0 for none.
        alpha: weight of the divergences of the two passes of R-Drop (Liang et al. 2021).
    """
    if torch.is_grad_enabled() and not alpha and hidden.dtype != torch.float64 and can_compile(hidden.device):
        smoothed, nll = _LossOfKernel.apply(hidden, weight, targets, label_smoothing)  # type: ignore[no-untyped-call]
        return Loss(smoothed, smoothed.detach(), nll, torch.zeros_like(nll))
    passes = len(hidden) // len(targets)
    # The grad mode is an argument, since it is always off in `forward`, and `needs_input_grad` does not depend on it.
    arguments = (hidden.unflatten(0, (passes, len(targets))), weight, targets, label_smoothing, alpha / 2, torch.is_grad_enabled())
    return Loss(*(total / passes for total in _SlicedLoss.apply(*arguments)))  # type: ignore[no-untyped-call]


def perplexity(nll: float) -> float:
    """Return exp of a negative log-likelihood per token, at most exp(`_MOST_NLL`)."""
    return math.exp(min(nll, _MOST_NLL))


class _Scaled(Function):
    """A loss whose forward pass, which has the logits, computes the gradients; the backward pass only scales them, and can run once."""

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient.mul_(upstream[0]), weight_gradient.mul_(upstream[0]), *[None] * (len(ctx.needs_input_grad) - 2)


class _SlicedLoss(_Scaled):
    """The loss in slices.

    A slice has one copy of its logits, in the precision of `hidden`. Their gradient overwrites them a few rows at a time, so that all
    float32 work stays in a CPU's cache. The products before and after are over the whole slice. With two passes, a slice has both logits
    of its tokens.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float, divergence: float, wants_gradient: bool
    ) -> tuple[Tensor, ...]:
        passes, vocab_size = len(hidden), weight.shape[0]
        others = label_smoothing / (vocab_size - 1)
        confidence = 1 - label_smoothing - others
        cast = weight.to(hidden.dtype)
        hidden_gradient = torch.empty_like(hidden) if wants_gradient else None
        weight_gradient = torch.zeros_like(weight) if wants_gradient else None
        exact = torch.promote_types(hidden.dtype, torch.float32)
        sums = torch.zeros(4, dtype=exact, device=hidden.device)
        smoothed, nll, correct, divergence_sum = sums.unbind()
        weight_sum = cast.sum(dim=0, dtype=exact)
        tokens = _ROWS_PER_SLICE // passes
        for start in range(0, len(targets), tokens):
            slice_targets = targets[start : start + tokens, None]
            part = hidden[:, start : start + tokens].flatten(0, 1)
            # On a CPU a kernel is generated for each new shape of a product; rows of zeros do not change a gradient.
            part = functional.pad(part, (0, 0, 0, -len(part) % _ROUND))
            logits = part @ cast.T
            real = logits[: passes * len(slice_targets)].unflatten(0, (passes, len(slice_targets)))
            count = max(1, _CACHED // (passes * vocab_size)) if real.device.type == "cpu" else len(slice_targets)
            for rows, wanted in zip(real.split(count, dim=1), slice_targets.split(count), strict=True):
                if not wants_gradient:
                    correct += (rows.argmax(dim=-1, keepdim=True) == wanted).sum()
                sums[:2] += _gradient_in_place(rows, wanted, confidence, divergence, divergence_sum)
            smoothed -= others * (part.sum(dim=0, dtype=exact) * weight_sum).sum()  # No product, which autocast would compute in fp16.
            if hidden_gradient is not None and weight_gradient is not None:
                gradient = (logits @ cast)[: passes * len(slice_targets)] - (others * weight_sum).to(hidden.dtype)
                hidden_gradient[:, start : start + len(slice_targets)] = gradient.unflatten(0, (passes, len(slice_targets)))
                weight_gradient += logits.T @ part
        if weight_gradient is not None:
            weight_gradient -= others * hidden.flatten(0, 1).sum(dim=0, dtype=exact)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.mark_non_differentiable(smoothed, nll, correct)
        return smoothed + divergence * divergence_sum, smoothed, nll, correct


class _LossOfKernel(_Scaled):
    """The same for one pass on a GPU, whose kernel needs no slices of a cache and subtracts the others' share of the smoothing itself."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
        from transformer_core.models.ops.logits_kernels import gradient_in_place  # It needs Triton, which a CPU's torch has not.

        vocab_size = len(weight)
        cast = functional.pad(weight.to(hidden.dtype), (0, 0, 0, -vocab_size % _MULTIPLE_OF_GPU))
        hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
        sums = torch.zeros(2, dtype=torch.float32, device=hidden.device)
        for start in range(0, len(targets), _ROWS_PER_SLICE_OF_GPU):
            rows = slice(start, start + _ROWS_PER_SLICE_OF_GPU)
            logits = hidden[rows] @ cast.T
            sums += gradient_in_place(logits[:, :vocab_size], targets[rows], label_smoothing)
            hidden_gradient[rows] = logits @ cast
            weight_gradient += (logits.T @ hidden[rows])[:vocab_size]
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        smoothed, nll = sums[0].clone(), sums[1].clone()
        ctx.mark_non_differentiable(nll)
        return smoothed, nll


def _gradient_in_place(logits: Tensor, targets: Tensor, confidence: float, divergence: float, divergence_sum: Tensor) -> Tensor:
    """Overwrite logits (P, r, V) with softmax - confidence * onehot(targets), and with two passes add divergence * dJ/dz.

    Args:
        logits: of P passes over r tokens.
        targets: (r, 1) token ids.
        confidence: the target's probability less that of another token, 1 - eps_ls - eps_ls / (V - 1).
        divergence: factor of J.
        divergence_sum: scalar, in the precision to compute in, to which J is added.

    Returns:
        (2,): sums over rows of logsumexp - confidence * z_target, and of the negative log-likelihood.
    """
    own = logits.to(divergence_sum.dtype)
    probabilities = own.softmax(dim=-1)
    # The largest probability is 1 / sum(exp(z - max z)), so this is the exact logsumexp without another pass of exponentials.
    normaliser = own.amax(dim=-1, keepdim=True) - probabilities.amax(dim=-1, keepdim=True).log()
    targets = targets.expand(len(logits), -1, -1)
    target_logits = own.gather(-1, targets)
    if len(logits) == 2:
        divergence_sum += _add_divergence(probabilities, own[0] - own[1], divergence)
    logits.copy_(probabilities.scatter_add_(-1, targets, torch.full_like(target_logits, -confidence)))
    return torch.stack(((normaliser - confidence * target_logits).sum(), (normaliser - target_logits).sum()))


def _add_divergence(probabilities: Tensor, difference: Tensor, factor: float) -> Tensor:
    """Add factor * dJ/dz to the probabilities (2, r, V) of two passes, whose logits differ by (r, V); return the sum of J over tokens."""
    first, second = probabilities
    rest = torch.empty_like(probabilities)  # u1 and u2.
    torch.addcmul(second, first, difference, value=-1, out=rest[0])
    torch.addcmul(first, second, difference, out=rest[1])
    sums = rest.sum(dim=-1, keepdim=True)
    probabilities.mul_(1 + factor * sums).sub_(rest, alpha=factor)
    return (1 - sums).sum()
