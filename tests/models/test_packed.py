"""Models laid out for decoding compute what they computed before."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from tests.models.test_architectures import SIZES, VOCAB, tokens
from transformer_core.models.architectures import build
from transformer_core.models.precision import PackedLinear, has_fast_bf16, pack
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ModelSize, TransformerSize

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
needs_bf16 = pytest.mark.skipif(not has_fast_bf16(torch.device("cpu")), reason="this CPU has no bf16")
SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=2, d_k=6, d_v=10, dropout=0.1)


def before_and_after(size: ModelSize, change: Callable[[TranslationModel], None]) -> tuple[TranslationModel, Tensor, Tensor]:
    """A changed model, and the log-probabilities that it gave before and gives now."""
    torch.manual_seed(0)
    model = build(size, VOCAB).eval()
    source, target = tokens(3, 9), tokens(6, 5)
    before = log_probabilities(model, source, target)
    change(model)
    return model, before, log_probabilities(model, source, target)


@torch.inference_mode()
def log_probabilities(model: TranslationModel, source: Tensor, target: Tensor) -> Tensor:
    """Of every next token along these targets, (2B, T), of which each source has two: decoded a step at a time."""
    state = model.start(source, source > 0)
    first = model.step(target[::2, 0], state)
    state.select(torch.arange(len(source)).repeat_interleave(2), None)
    return torch.cat([first, *(model.step(column, state) for column in target[:, 1:].T)]).log_softmax(dim=1)


@needs_onednn
@given(rows=st.integers(1, 70), inputs=st.integers(1, 300), outputs=st.integers(1, 300), seed=st.integers(0, 9), biased=st.booleans())
def test_a_product_is_the_same(rows: int, inputs: int, outputs: int, seed: int, biased: bool) -> None:
    torch.manual_seed(seed)
    x, weight, bias = torch.randn(rows, 1, inputs), torch.randn(outputs, inputs), torch.randn(outputs) if biased else None
    exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(PackedLinear(weight, bias)(x).double(), exact, rtol=1e-5, atol=1e-4)


@needs_onednn
@needs_bf16
def test_a_product_in_bf16_is_rounded_once() -> None:
    torch.manual_seed(2)
    x, weight, bias = (torch.randn(*shape).bfloat16() for shape in ((5, 7, 96), (40, 96), (40,)))
    exact = functional.linear(x.double(), weight.double(), bias.double())
    product = PackedLinear(weight, bias)(x)
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product.double(), exact, rtol=2**-8, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_every_architecture_decodes_the_same(size: ModelSize) -> None:
    model, before, after = before_and_after(size, pack)
    assert isinstance(model.decoding_projection, PackedLinear)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("to", [torch.float64, torch.device("meta")], ids=str)
def test_what_has_no_such_kernels_stays_as_it_is(to: torch.dtype | torch.device) -> None:
    model = Transformer(SIZE, VOCAB).to(to)
    names = set(model.state_dict())
    pack(model)
    assert set(model.state_dict()) == names
    assert model.decoding_projection is None


def test_one_product_projects_to_query_key_and_value() -> None:
    attention = Transformer(SIZE, VOCAB).encoder[0].self_attention.double()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    query, memory = attention.project(x)
    attention.fuse()
    joined_query, joined_memory = attention.project(x)
    for apart, together in ((query, joined_query), (memory.key, joined_memory.key), (memory.value, joined_memory.value)):
        torch.testing.assert_close(together, apart, rtol=0, atol=1e-12)
    assert (query.shape, memory.value.shape) == ((3, 2, 5, 6), (3, 2, 5, 10))
