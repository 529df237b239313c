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
def _row_sum(parts):
    """Return the sums of rows in four quarters."""
    return tl.sum(parts[0] + parts[1] + parts[2] + parts[3], axis=1)


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
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = [quarter * QUARTER + tl.arange(0, QUARTER) for quarter in (0, 1, 2, 3)]
    inside = [(row < rows)[:, None] & (column < WIDTH)[None, :] for column in columns]
    random = _drawn(seed, row, columns[0], QUARTER, ROUNDS, DROPS)
    total = [_total(x, y, row, columns[q], inside[q], random[q], threshold, scale, WIDTH, ADDS, DROPS) for q in (0, 1, 2, 3)]
    if NORM:
        mean = _row_sum(total) / WIDTH
        total = [tl.where(inside[q], total[q] - mean[:, None], 0.0) for q in (0, 1, 2, 3)]
        reciprocal = tl.rsqrt(_row_sum([part * part for part in total]) / WIDTH + epsilon)
        tl.store(statistics + row, mean, mask=row < rows)
        tl.store(statistics + rows + row, reciprocal, mask=row < rows)
        total = [_scaled(total[q] * reciprocal[:, None], weight, bias, columns[q], WIDTH) for q in (0, 1, 2, 3)]
    for q in tl.static_range(4):
        _store(out, total[q], row, columns[q], inside[q], WIDTH)


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
    columns = [quarter * QUARTER + tl.arange(0, QUARTER) for quarter in (0, 1, 2, 3)]
    of_weight = [tl.zeros((ROWS, QUARTER), tl.float32) for _ in (0, 1, 2, 3)]
    of_bias = of_weight
    for block in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = [(row < rows)[:, None] & (column < WIDTH)[None, :] for column in columns]
        random = _drawn(seed, row, columns[0], QUARTER, ROUNDS, DROPS)
        own = [_sum_of_two(first, second, row, columns[q], inside[q], WIDTH, TWO) for q in (0, 1, 2, 3)]
        if NORM:
            mean = tl.load(statistics + row, mask=row < rows, other=0.0)
            reciprocal = tl.load(statistics + rows + row, mask=row < rows, other=0.0)
            total = [_total(x, y, row, columns[q], inside[q], random[q], threshold, scale, WIDTH, ADDS, DROPS) for q in (0, 1, 2, 3)]
            normal = [tl.where(inside[q], (total[q] - mean[:, None]) * reciprocal[:, None], 0.0) for q in (0, 1, 2, 3)]
            of_weight = [of_weight[q] + own[q] * normal[q] for q in (0, 1, 2, 3)]
            of_bias = [of_bias[q] + own[q] for q in (0, 1, 2, 3)]
            own = [own[q] * tl.load(weight + columns[q], mask=columns[q] < WIDTH, other=0.0)[None, :] for q in (0, 1, 2, 3)]
            level = (_row_sum(own) / WIDTH)[:, None]
            slope = (_row_sum([own[q] * normal[q] for q in (0, 1, 2, 3)]) / WIDTH)[:, None]
            own = [(own[q] - level - normal[q] * slope) * reciprocal[:, None] for q in (0, 1, 2, 3)]
        for q in tl.static_range(4):
            _store(x_gradient, own[q], row, columns[q], inside[q], WIDTH)
            if DROPS:
                _store(y_gradient, _dropped(own[q], random[q], threshold, scale, DROPS), row, columns[q], inside[q], WIDTH)
    if NORM:
        place = partial + tl.program_id(0) * 2 * WIDTH
        for q in tl.static_range(4):
            _store_sum(place, of_weight[q], columns[q], WIDTH)
            _store_sum(place + WIDTH, of_bias[q], columns[q], WIDTH)


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

    The gradients of the two are added up by the backward kernel. x is (..., D), contiguous; y has its shape and type; the norm is float32.
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
    return _LinearRelu.apply(x.reshape(-1, x.shape[-1]), linear.weight, linear.bias).view(*x.shape[:-1], -1)
