"""The layer types of Table 1, and the operations that it counts of each.

Self-attention, the recurrent and the contiguous convolutional layer are those of the models; dilated and separable convolutions, which no
model here has, are made of PyTorch's. The paper's restricted self-attention is an outlook, and is not measured.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transformer_core.baselines.convolutional import Convolutional
from transformer_core.baselines.recurrent import Recurrent
from transformer_core.baselines.sizes import ConvolutionalSize, RecurrentSize
from transformer_core.models.attention import SelfAttention, scaled_dot_product_attention
from transformer_core.models.embeddings import Dropout
from transformer_core.models.ops.padded_attention import fused
from transformer_core.presets import TransformerSize

HEAD = 64  # d_k of both of the paper's models: twice the width is twice as many heads.
KERNEL = 3  # Of the layers that are timed as a whole.


class Layer(nn.Module):
    """A map from (B, n, d) to the same shape: a module, and the function that applies it."""

    def __init__(self, module: nn.Module, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.function(self.module, x)


def attention(d: int, *_: int) -> Layer:
    """Return self-attention of the Transformer."""
    head = min(HEAD, d)
    size = TransformerSize(layers=1, d_model=d, d_ff=d, heads=d // head, d_k=head, d_v=head, dropout=0.0)
    return Layer(SelfAttention(size), lambda module, x: module(*module.project(x), None))


def recurrence(d: int, *_: int) -> Layer:
    """Return the encoder of the recurrent models: one LSTM layer, from left to right."""
    size = RecurrentSize(layers=1, d_model=d, dropout=0.0, attention="none", bidirectional=False)
    return Layer(Recurrent(size, vocab_size=1).encoder, lambda lstm, x: lstm(x)[0])


def contiguous(d: int, k: int, _: int = 0) -> Layer:
    """Return an encoder layer of the convolutional model: a gated convolution around each position, and a residual."""
    encoder = Convolutional(ConvolutionalSize(layers=1, d_model=d, dropout=0.0, kernel=k), vocab_size=1).encoder
    return Layer(encoder[0], lambda layer, x: layer(x, torch.ones(*x.shape[:2], 1, dtype=torch.bool)))


def convolutions(*layers: nn.Conv1d, before: int = 0) -> Layer:
    """Return convolutions of PyTorch, one after the other, behind `before` positions of zeros."""
    stack = nn.Sequential(nn.ConstantPad1d((before, 0), 0.0), *layers)
    return Layer(stack, lambda stack, x: stack(x.transpose(1, 2)).transpose(1, 2))


def dilated(d: int, k: int, number: int) -> Layer:
    """Return layer `number` of a stack, from 0: each position reads itself and k - 1 before it, k^number apart.

    With centred kernels some pairs near the ends of a sentence are not connected by a stack of any depth: each distance has one path
    through the dilations 1, k, k^2 ..., with steps to both sides, and the path is lost if it leaves the sentence.
    """
    return convolutions(nn.Conv1d(d, d, k, dilation=k**number), before=k**number * (k - 1))


def depthwise(d: int, k: int, _: int = 0) -> Layer:
    """Return a convolution of each channel by itself."""
    return convolutions(nn.Conv1d(d, d, k, groups=d, padding=k // 2))


def separable(d: int, k: int, _: int = 0) -> Layer:
    """Return a depthwise convolution and one over the channels of each position."""
    return convolutions(nn.Conv1d(d, d, k, groups=d, padding=k // 2), nn.Conv1d(d, d, 1))


Build = Callable[[int, int, int], Layer]
Run = Callable[[], Tensor]


class Sizes(NamedTuple):
    """Positions n, width d, and the kernel k of the layers that have one."""

    n: int
    d: int
    size: int = 0


class LayerType(NamedTuple):
    """A row of Table 1.

    Attributes:
        build: makes the layer from d, the kernel, and the number of the layer in its stack.
        path: exact longest path in theory, from the number of positions and the kernel.
        sizes: kernels whose paths are measured.
        size: kernel of the layer that is timed as a whole.
        one_way: whether it reads earlier positions only; paths are then those to an output from itself and the inputs before it.
    """

    build: Build
    path: Callable[[int, int], int]
    sizes: tuple[int, ...] = (0,)
    size: int = 0
    one_way: bool = False


def contiguous_path(n: int, k: int) -> int:
    """Return the longest path of contiguous kernels: each layer reaches half a kernel to a side."""
    return -(-(n - 1) // (k // 2))


LAYERS = {
    "self-attention": LayerType(attention, lambda _, __: 1),
    "recurrent": LayerType(recurrence, lambda n, _: n, one_way=True),
    "convolution, contiguous": LayerType(contiguous, contiguous_path, (3, 5), KERNEL),
    # L layers reach k^L - 1 positions.
    "convolution, dilated": LayerType(dilated, lambda n, k: next(L for L in range(n) if k**L >= n), (3, 5), KERNEL, one_way=True),
    "convolution, separable": LayerType(separable, contiguous_path, (3, 5), KERNEL),
}


def whole(build: Build, sizes: Sizes, batch: int, dtype: torch.dtype) -> Run:
    """Return a run of a whole layer."""
    return partial(build(sizes.d, sizes.size, 0).to(dtype), torch.randn(batch, sizes.n, sizes.d, dtype=dtype))


def products(sizes: Sizes, batch: int, dtype: torch.dtype) -> Run:
    """Return a run of self-attention without its projections."""
    query, key, value = torch.randn(3, batch, sizes.d // HEAD, sizes.n, HEAD, dtype=dtype)

    def run() -> Tensor:
        attend = scaled_dot_product_attention if torch.is_grad_enabled() else fused
        return attend(query, key, value, None, Dropout(0.0))

    return run


class Counted(NamedTuple):
    """The operations that Table 1 counts of a layer, and the sizes at which they are measured: around `middle`, one size at a time.

    Attributes:
        make: from sizes, sentences in the batch and a type of numbers to a function that runs them.
        formula: number of operations in Table 1, up to a factor.
        batch: sentences side by side. A time is that of the batch, FLOPs are those of a sentence.
        gradients: whether tensors for the backward pass are kept.
    """

    make: Callable[[Sizes, int, torch.dtype], Run]
    formula: Callable[[Sizes], float]
    middle: Sizes
    n: tuple[int, ...]
    d: tuple[int, ...]
    size: tuple[int, ...] = ()
    batch: int = 1
    gradients: bool = False

    def points(self) -> list[tuple[str, Sizes]]:
        """Return the name of the size that varies, and all sizes, of each point."""
        swept = {"n": self.n, "d": self.d, "size": self.size}
        return [(name, self.middle._replace(**{name: value})) for name, values in swept.items() for value in values]


def convolution(build: Build) -> Counted:
    """Return a convolution over all channels, contiguous or dilated, with the same sizes for both."""
    n, d, kernels = (256, 512, 1024, 2048), (128, 256, 512, 1024), (3, 5, 9, 17)
    return Counted(partial(whole, build), lambda s: s.size * s.n * s.d**2, Sizes(512, 512, 3), n, d, kernels)


def _all_pairs(s: Sizes) -> int:
    return s.n**2 * s.d


def _by_channel(s: Sizes) -> int:
    return s.size * s.n * s.d


COUNTED = {
    # No tensor of this is larger than 16 MB: from 32 MB on, glibc takes memory from the system for each call
    # and gives it back, which takes as long as the products (docs/layers.md).
    "self-attention, weights kept": Counted(products, _all_pairs, Sizes(512, 256), (256, 512, 1024), (128, 256, 512, 1024), gradients=True),
    "self-attention, fused": Counted(products, _all_pairs, Sizes(1024, 512), (512, 1024, 2048), (128, 256, 512, 1024)),
    # Sentences side by side share the reading of the weights; at d = 1024 these are larger than the cache of most machines.
    "recurrent": Counted(partial(whole, recurrence), lambda s: s.n * s.d**2, Sizes(64, 512), (32, 64, 128, 256), (128, 256, 512), batch=16),
    "convolution, contiguous": convolution(contiguous),
    "convolution, dilated": convolution(lambda d, k, _: dilated(d, k, 1)),
    # The kernel hardly counts beside the width; it is varied only in the depthwise part.
    "convolution, separable": Counted(
        partial(whole, separable), lambda s: _by_channel(s) + s.n * s.d**2, Sizes(2048, 512, 3), (256, 512, 1024, 2048), (256, 512, 1024)
    ),
    "its depthwise part": Counted(
        partial(whole, depthwise), _by_channel, Sizes(2048, 256, 33), (512, 1024, 2048), (128, 256, 512), (33, 65, 129)
    ),
}
