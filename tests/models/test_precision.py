"""Models pre-packed for decoding compute the same as before; in 8-bit integers, exact products near those of the weights as trained."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from tests.models.on_disk import write_drawn
from tests.models.test_architectures import SIZES, VOCAB, tokens
from tests.refusals import refused
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.errors import UserError
from transformer_core.models.architectures import build
from transformer_core.models.precision import PackedLinear, QuantisedLinear, has_fast_bf16, has_vnni, pack, quantise
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ModelSize, TransformerSize

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
needs_vnni = pytest.mark.skipif(not has_vnni(), reason="this CPU does not multiply 8-bit integers")
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


def in_whole_numbers(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows as multiples of a 127th of the greatest of each, and these steps, in float64."""
    step = rows.abs().amax(dim=1, keepdim=True) / 127
    return (rows / step).round(), step


@needs_vnni
@given(rows=st.integers(1, 70), inputs=st.integers(1, 600), outputs=st.integers(1, 300), seed=st.integers(0, 9), biased=st.booleans())
def test_a_product_in_int8_is_that_of_the_definition(rows: int, inputs: int, outputs: int, seed: int, biased: bool) -> None:
    torch.manual_seed(seed)
    # Of powers of two, so that no step lies so near the middle of two whole numbers that float32 takes the other one.
    x, weight = (torch.randint(-127, 128, (count, inputs)) * 2.0**-5 for count in (rows, outputs))
    x[:, 0], weight[:, 0] = 127 * 2.0**-5, -127 * 2.0**-5
    bias = torch.randn(outputs) if biased else None
    (whole, step), (whole_weight, weight_step) = in_whole_numbers(x.double()), in_whole_numbers(weight.double())
    expected = (whole @ whole_weight.T) * step * weight_step.T + (0.0 if bias is None else bias.double())
    torch.testing.assert_close(QuantisedLinear(weight, bias)(x).double(), expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@needs_vnni
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_greatest_sums_do_not_overflow(sign: float) -> None:
    x, weight = torch.full((3, 4096), sign * 7.0), torch.full((40, 4096), 0.5)
    torch.testing.assert_close(QuantisedLinear(weight, None)(x), torch.full((3, 40), sign * 7.0 * 0.5 * 4096))


@needs_vnni
def test_a_row_does_not_depend_on_other_rows_to_the_bit() -> None:
    torch.manual_seed(1)
    linear = QuantisedLinear(torch.randn(300, 96), torch.randn(300))
    x = torch.randn(33, 96) * torch.logspace(-3, 3, 33)[:, None]
    together = linear(x)
    assert all(torch.equal(linear(row[None])[0], together[number]) for number, row in enumerate(x))
    assert torch.equal(linear(x.view(3, 11, 96)), together.view(3, 11, 300))


@needs_vnni
def test_rows_of_zeros_give_the_bias() -> None:
    bias = torch.randn(5)
    assert torch.equal(QuantisedLinear(torch.zeros(5, 8), bias)(torch.randn(2, 8)), bias.expand(2, 5))
    assert torch.equal(QuantisedLinear(torch.randn(5, 8), bias)(torch.zeros(2, 8)), bias.expand(2, 5))


@needs_vnni
@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_every_architecture_decodes_nearly_the_same_in_int8(size: ModelSize) -> None:
    _, before, after = before_and_after(size, quantise)
    assert not torch.equal(before, after)
    # A 254th of the greatest entry is the most that rounding changes any; that stays small through all layers.
    assert float((before - after).norm() / (before - before.mean(dim=1, keepdim=True)).norm()) < 0.1


@needs_vnni
def test_a_model_directory_is_read_in_int8(tmp_path: Path) -> None:
    directory = write_drawn(tmp_path / "model", SIZE, seed=0)
    search = Search(beam=2, max_extra=4)
    (quantised,), (exact,) = (
        Translator.load(directory, precision=precision).translate(["the dog sees a cat"], search) for precision in ("int8", "float32")
    )
    assert quantised[0].score != exact[0].score
    assert quantised[0].score == pytest.approx(exact[0].score, rel=0.05)


def test_where_int8_cannot_be_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="precision int8: is for CPUs"):
        quantise(Transformer(SIZE, VOCAB).to("meta"))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    with refused(78, "precision int8: this CPU has no VNNI"):
        quantise(Transformer(SIZE, VOCAB))
