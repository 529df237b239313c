"""The Triton kernels compile for every GPU that they are taken on, from Ampere on, and fit its shared memory; no GPU is needed for this."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_core.models.ops.packed import Packed
from transformer_core.models.ops.packed_transformer import LONGEST_OF_SHORT as MOST

pytest.importorskip("triton", reason="needs Triton: make test-kernels")
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="compiles nothing in Triton's interpreter")
# Compute capability and the most bytes of shared memory of a block (CUDA C++ Programming Guide, technical specifications).
SHARED = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}


class Gpu:
    """Triton's driver, of a GPU that is only named."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return int(self._target.arch)  # A kernel keeps what it has compiled by this number.

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.fixture(params=SHARED, ids=lambda capability: f"sm_{capability}")
def compiled(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Kernels that were compiled instead of launched."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    kernels: list[Any] = []

    def compiling(self: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **kwargs: kernels.append(self.run(*args, grid=grid, warmup=True, **kwargs))

    monkeypatch.setattr(JITFunction, "__getitem__", compiling)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", Gpu(request.param))
    yield kernels
    assert kernels
    assert max(kernel.metadata.shared for kernel in kernels) <= SHARED[request.param]


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.ones(shape, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("width", [512, 1024])
def test_residual_and_norm(compiled: list[Any], width: int) -> None:
    from transformer_core.models.ops.layer_kernels import residual

    norm = nn.LayerNorm(width)
    for y, layer, dropout in ((drawn(9, width), norm, 0.1), (drawn(9, width), None, 0.1), (None, norm, 0.0)):
        one, other = residual(drawn(9, width), y, layer, dropout)
        (one + other).sum().backward()
    assert len(compiled) == 6


def test_gradient_of_relu(compiled: list[Any]) -> None:
    from transformer_core.models.ops.layer_kernels import linear_relu

    linear_relu(drawn(9, 1024), nn.Linear(1024, 4096, dtype=torch.bfloat16)).sum().backward()
    assert len(compiled) == 1


@pytest.mark.parametrize(("longest", "of_keys"), [(16, 16), (64, 64), (MOST, MOST), (16, MOST), (MOST, 16)])
def test_attention_within_short_sentences(compiled: list[Any], longest: int, of_keys: int) -> None:
    from transformer_core.models.ops.short_attention import short_attention

    queries, keys = (Packed(*torch.empty(2, 0), torch.tensor([0, side], dtype=torch.int32), side) for side in (longest, of_keys))
    for causal in (False, True):
        short_attention(drawn(longest, 16, 64), *(drawn(of_keys, 16, 64) for _ in range(2)), queries, keys, causal).sum().backward()
    assert len(compiled) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_hypotheses(compiled: list[Any], dtype: torch.dtype) -> None:
    from transformer_core.models.ops.decoding_attention import decoding_attention
    from transformer_core.models.ops.padded_attention import _MOST, _WIDEST

    for hypotheses in (4, _MOST):
        query, slots = drawn(2, 8, hypotheses, _WIDEST, dtype=dtype), drawn(2, 8, 96, _WIDEST, dtype=dtype)
        decoding_attention(query, slots, slots, torch.zeros(2, 1, hypotheses, 96, dtype=dtype))
    assert len(compiled) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_a_search(compiled: list[Any], dtype: torch.dtype) -> None:
    from transformer_core.models.ops.logits_kernels import normaliser_and_maxima

    normaliser_and_maxima(drawn(3, 37_000, dtype=dtype).detach(), 576, 3)
    assert len(compiled) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss(compiled: list[Any], dtype: torch.dtype) -> None:
    from transformer_core.models.ops.logits_kernels import gradient_in_place

    gradient_in_place(drawn(3, 37_000, dtype=dtype), torch.zeros(3, dtype=torch.long), 0.1)
    assert len(compiled) == 1
