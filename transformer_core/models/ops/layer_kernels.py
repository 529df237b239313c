"""What lies between the matrix products of a layer, on a GPU: Triton kernels that read and write each tensor once.

Gradients of biases and norms are added up in a fixed order: by each program over its rows, then over the programs. A row is worked on in
four quarters, because the random generator makes four numbers at a time; the backward pass draws them again.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd import Function

_PROGRAMS = 528  # Of a backward pass: four for each processor of an H100.
_ROWS = 2  # Of x and y at a time.
_ROUNDS = 7  # Of the random generator Philox4x32: with seven it passes all of BigCrush (Salmon et al. 2011).
_RELU_PROGRAMS, _RELU_ROWS, _RELU_COLUMNS = 64, 16, 256  # Programs for each block of columns; rows and columns at a time.


@triton.jit
def _load(base, row, column, inside, WIDTH: tl.constexpr):
    """Load columns of rows in float32, zeros outside."""
    return tl.load(base + row.to(tl.int64)[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(base, part, row, column, inside, WIDTH: tl.constexpr):
    place = base + row.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(place, part.to(base.dtype.element_ty), mask=inside)


@triton.jit
def _store_sum(base, part, column, WIDTH: tl.constexpr):
    """Store the sums over rows."""
    tl.store(base + column, tl.sum(part, axis=0), mask=column < WIDTH)


@triton.jit
def _drawn(seed, row, column, QUARTER: tl.constexpr, ROUNDS: tl.constexpr, DROPS: tl.constexpr):
    """Return random numbers for the four quarters of rows."""
    place = row[:, None] * QUARTER + column[None, :]
    if DROPS:
        a, b, c, d = tl.randint4x(tl.load(seed), place, ROUNDS)
    else:
        a, b, c, d = place, place, place, place
    return a, b, c, d


@triton.jit
def _dropped(part, random, threshold, scale, DROPS: tl.constexpr):
    return tl.where(random.to(tl.uint32, bitcast=True) >= threshold, part * scale, 0.0) if DROPS else part


@triton.jit
def _total(x, y, row, column, inside, random, threshold, scale, WIDTH: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr):
    """Return x + dropout(y), or x."""
    total = _load(x, row, column, inside, WIDTH)
    return total + _dropped(_load(y, row, column, inside, WIDTH), random, threshold, scale, DROPS) if ADDS else total


@triton.jit
def _scaled(normal, weight, bias, column, WIDTH: tl.constexpr):
    inside = column < WIDTH
    return normal * tl.load(weight + column, mask=inside, other=0.0)[None, :] + tl.load(bias + column, mask=inside, other=0.0)[None, :]


@triton.jit
def _residual_forward(
    x, y, weight, bias, out, statistics, seed, rows, threshold, scale, epsilon,
    WIDTH: tl.constexpr, QUARTER: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr, NORM: tl.constexpr, ROUNDS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    row, c0 = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, QUARTER)
    c1, c2, c3 = c0 + QUARTER, c0 + 2 * QUARTER, c0 + 3 * QUARTER
    here = (row < rows)[:, None]
    in0, in1 = here & (c0 < WIDTH)[None, :], here & (c1 < WIDTH)[None, :]
    in2, in3 = here & (c2 < WIDTH)[None, :], here & (c3 < WIDTH)[None, :]
    r0, r1, r2, r3 = _drawn(seed, row, c0, QUARTER, ROUNDS, DROPS)
    t0 = _total(x, y, row, c0, in0, r0, threshold, scale, WIDTH, ADDS, DROPS)
    t1 = _total(x, y, row, c1, in1, r1, threshold, scale, WIDTH, ADDS, DROPS)
    t2 = _total(x, y, row, c2, in2, r2, threshold, scale, WIDTH, ADDS, DROPS)
    t3 = _total(x, y, row, c3, in3, r3, threshold, scale, WIDTH, ADDS, DROPS)
    if NORM:
        mean = tl.sum(t0 + t1 + t2 + t3, axis=1) / WIDTH
        t0, t1 = tl.where(in0, t0 - mean[:, None], 0.0), tl.where(in1, t1 - mean[:, None], 0.0)
        t2, t3 = tl.where(in2, t2 - mean[:, None], 0.0), tl.where(in3, t3 - mean[:, None], 0.0)
        reciprocal = tl.rsqrt(tl.sum(t0 * t0 + t1 * t1 + t2 * t2 + t3 * t3, axis=1) / WIDTH + epsilon)
        tl.store(statistics + row, mean, mask=row < rows)
        tl.store(statistics + rows + row, reciprocal, mask=row < rows)
        t0, t1 = _scaled(t0 * reciprocal[:, None], weight, bias, c0, WIDTH), _scaled(t1 * reciprocal[:, None], weight, bias, c1, WIDTH)
        t2, t3 = _scaled(t2 * reciprocal[:, None], weight, bias, c2, WIDTH), _scaled(t3 * reciprocal[:, None], weight, bias, c3, WIDTH)
    _store(out, t0, row, c0, in0, WIDTH)
    _store(out, t1, row, c1, in1, WIDTH)
    _store(out, t2, row, c2, in2, WIDTH)
    _store(out, t3, row, c3, in3, WIDTH)


@triton.jit
def _normal(
    x, y, row, column, inside, random, threshold, scale, mean, reciprocal, WIDTH: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr
):  # fmt: skip
    """Return x + dropout(y) with a mean of 0 and a deviation of 1."""
    total = _total(x, y, row, column, inside, random, threshold, scale, WIDTH, ADDS, DROPS)
    return tl.where(inside, (total - mean[:, None]) * reciprocal[:, None], 0.0)


@triton.jit
def _sum_of_two(first, second, row, column, inside, WIDTH: tl.constexpr, TWO: tl.constexpr):
    upstream = _load(first, row, column, inside, WIDTH)
    return upstream + _load(second, row, column, inside, WIDTH) if TWO else upstream


@triton.jit
def _residual_backward(
    first, second, x, y, weight, statistics, seed, x_gradient, y_gradient, partial, rows, threshold, scale,
    WIDTH: tl.constexpr, QUARTER: tl.constexpr, TWO: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr, NORM: tl.constexpr,
    ROUNDS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    c0 = tl.arange(0, QUARTER)
    c1, c2, c3 = c0 + QUARTER, c0 + 2 * QUARTER, c0 + 3 * QUARTER
    zeros = tl.zeros((ROWS, QUARTER), tl.float32)
    w0, w1, w2, w3, b0, b1, b2, b3 = zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        here = (row < rows)[:, None]
        in0, in1 = here & (c0 < WIDTH)[None, :], here & (c1 < WIDTH)[None, :]
        in2, in3 = here & (c2 < WIDTH)[None, :], here & (c3 < WIDTH)[None, :]
        r0, r1, r2, r3 = _drawn(seed, row, c0, QUARTER, ROUNDS, DROPS)
        u0, u1 = _sum_of_two(first, second, row, c0, in0, WIDTH, TWO), _sum_of_two(first, second, row, c1, in1, WIDTH, TWO)
        u2, u3 = _sum_of_two(first, second, row, c2, in2, WIDTH, TWO), _sum_of_two(first, second, row, c3, in3, WIDTH, TWO)
        if NORM:
            mean = tl.load(statistics + row, mask=row < rows, other=0.0)
            reciprocal = tl.load(statistics + rows + row, mask=row < rows, other=0.0)
            n0 = _normal(x, y, row, c0, in0, r0, threshold, scale, mean, reciprocal, WIDTH, ADDS, DROPS)
            n1 = _normal(x, y, row, c1, in1, r1, threshold, scale, mean, reciprocal, WIDTH, ADDS, DROPS)
            n2 = _normal(x, y, row, c2, in2, r2, threshold, scale, mean, reciprocal, WIDTH, ADDS, DROPS)
            n3 = _normal(x, y, row, c3, in3, r3, threshold, scale, mean, reciprocal, WIDTH, ADDS, DROPS)
            w0, w1, w2, w3 = w0 + u0 * n0, w1 + u1 * n1, w2 + u2 * n2, w3 + u3 * n3
            b0, b1, b2, b3 = b0 + u0, b1 + u1, b2 + u2, b3 + u3
            u0 *= tl.load(weight + c0, mask=c0 < WIDTH, other=0.0)[None, :]
            u1 *= tl.load(weight + c1, mask=c1 < WIDTH, other=0.0)[None, :]
            u2 *= tl.load(weight + c2, mask=c2 < WIDTH, other=0.0)[None, :]
            u3 *= tl.load(weight + c3, mask=c3 < WIDTH, other=0.0)[None, :]
            level = (tl.sum(u0 + u1 + u2 + u3, axis=1) / WIDTH)[:, None]
            slope = (tl.sum(u0 * n0 + u1 * n1 + u2 * n2 + u3 * n3, axis=1) / WIDTH)[:, None]
            u0, u1 = (u0 - level - n0 * slope) * reciprocal[:, None], (u1 - level - n1 * slope) * reciprocal[:, None]
            u2, u3 = (u2 - level - n2 * slope) * reciprocal[:, None], (u3 - level - n3 * slope) * reciprocal[:, None]
        _store(x_gradient, u0, row, c0, in0, WIDTH)
        _store(x_gradient, u1, row, c1, in1, WIDTH)
        _store(x_gradient, u2, row, c2, in2, WIDTH)
        _store(x_gradient, u3, row, c3, in3, WIDTH)
        if DROPS:
            _store(y_gradient, _dropped(u0, r0, threshold, scale, DROPS), row, c0, in0, WIDTH)
            _store(y_gradient, _dropped(u1, r1, threshold, scale, DROPS), row, c1, in1, WIDTH)
            _store(y_gradient, _dropped(u2, r2, threshold, scale, DROPS), row, c2, in2, WIDTH)
            _store(y_gradient, _dropped(u3, r3, threshold, scale, DROPS), row, c3, in3, WIDTH)
    if NORM:
        own = partial + tl.program_id(0) * 2 * WIDTH
        _store_sum(own, w0, c0, WIDTH)
        _store_sum(own, w1, c1, WIDTH)
        _store_sum(own, w2, c2, WIDTH)
        _store_sum(own, w3, c3, WIDTH)
        _store_sum(own + WIDTH, b0, c0, WIDTH)
        _store_sum(own + WIDTH, b1, c1, WIDTH)
        _store_sum(own + WIDTH, b2, c2, WIDTH)
        _store_sum(own + WIDTH, b3, c3, WIDTH)


class _Residual(Function):
    """See `residual`. Without y or a norm, x stands in for pointers that are not read."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor | None, bias: Tensor | None, dropout: float, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows, width = x.shape
        out = torch.empty_like(x)
        statistics = torch.empty(2, 0 if weight is None else rows, device=x.device)
        seed = torch.randint(1 << 62, (1,), device=x.device) if dropout else statistics
        ctx.numbers = round(dropout * (1 << 32)), 1 / (1 - dropout)
        ctx.flags = y is not None, dropout > 0, weight is not None
        sizes = width, _quarter(width)
        tensors = (x, x if y is None else y, x if weight is None else weight, x if bias is None else bias, out, statistics, seed)
        _residual_forward[(triton.cdiv(rows, _ROWS),)](*tensors, rows, *ctx.numbers, epsilon, *sizes, *ctx.flags, _ROUNDS, _ROWS)
        ctx.save_for_backward(x, y, weight, statistics, seed)
        return out, out.detach()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        x, y, weight, statistics, seed = ctx.saved_tensors
        given = [gradient.contiguous() for gradient in upstream if gradient is not None]
        rows, width = x.shape
        adds, drops, norm = ctx.flags
        programs = min(triton.cdiv(rows, _ROWS), _PROGRAMS)
        x_gradient = torch.empty_like(x)
        y_gradient = torch.empty_like(x) if drops else x_gradient
        partial = torch.empty(programs, 2, width if norm else 0, device=x.device)
        sizes = width, _quarter(width), len(given) == 2
        tensors = (given[0], given[-1], x, x if y is None else y, x if weight is None else weight, statistics, seed)
        _residual_backward[(programs,)](
            *tensors, x_gradient, y_gradient, partial, rows, *ctx.numbers, *sizes, *ctx.flags, _ROUNDS, _ROWS
        )  # fmt: skip
        of_norm = partial.sum(dim=0) if norm else (None, None)
        return x_gradient, y_gradient if adds else None, *of_norm, None, None


def _quarter(width: int) -> int:
    return max(1, triton.next_power_of_2(width) // 4)


def residual(x: Tensor, y: Tensor | None, norm: nn.LayerNorm | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Return LayerNorm(x + Dropout(y)) twice; without y LayerNorm(x), and without a norm x + Dropout(y).

    The gradients of the two are added up by the backward kernel.

    Args:
        x: (..., D), contiguous.
        y: the shape and type of x, or None.
        norm: over D, float32.
        dropout: probability.
    """
    weight, bias, epsilon = (None, None, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    rows = [None if part is None else part.reshape(-1, x.shape[-1]) for part in (x, y)]
    once, again = _Residual.apply(*rows, weight, bias, dropout, epsilon)
    return once.view(x.shape), again.view(x.shape)


@triton.jit
def _relu_backward(upstream, activations, gradient, partial, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
        own = _load(upstream, row, column, inside, WIDTH)
        own = tl.where(_load(activations, row, column, inside, WIDTH) > 0, own, 0.0)
        total += own
        _store(gradient, own, row, column, inside, WIDTH)
    _store_sum(partial + tl.program_id(0) * WIDTH, total, column, WIDTH)


class _LinearRelu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        low = weight.to(x.dtype)
        activations = torch._addmm_activation(bias.to(x.dtype), x, low.t())  # Bias and maximum are in the product's kernel.
        ctx.save_for_backward(x, low, activations)
        ctx.dtype = weight.dtype
        return activations

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, low, activations = ctx.saved_tensors
        rows, width = activations.shape
        gradient = torch.empty_like(activations)
        programs = min(triton.cdiv(rows, _RELU_ROWS), _RELU_PROGRAMS)
        partial = torch.empty(programs, width, device=x.device)
        grid = (programs, triton.cdiv(width, _RELU_COLUMNS))
        _relu_backward[grid](upstream.contiguous(), activations, gradient, partial, rows, width, _RELU_ROWS, _RELU_COLUMNS)
        return gradient @ low, (gradient.t() @ x).to(ctx.dtype), partial.sum(dim=0).to(ctx.dtype)


def linear_relu(x: Tensor, linear: nn.Linear) -> Tensor:
    """Return max(0, x W^T + b), in the type of x: (..., D) to (..., F)."""
    out: Tensor = _LinearRelu.apply(x.reshape(-1, x.shape[-1]), linear.weight, linear.bias)
    return out.view(*x.shape[:-1], -1)
