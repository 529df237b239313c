"""Products of 8-bit integers: exact ones, of a row alone, and near enough to those of the weights as trained."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.models.on_disk import write_model
from tests.models.test_architectures import SIZES, VOCAB
from tests.models.test_packed import before_and_after
from tests.models.vnni import needs_vnni
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.errors import ExitCode, UserError
from transformer_core.models.precision import QuantisedLinear, quantise
from transformer_core.models.transformer import Transformer
from transformer_core.presets import ModelSize, TransformerSize

TINY = TransformerSize(layers=1, d_model=16, d_ff=32, heads=2, d_k=8, d_v=8, dropout=0.1)


def in_whole_numbers(rows: Tensor) -> tuple[Tensor, Tensor]:
    """What the definition says, in numbers of 64 bits: multiples of a 127th of the greatest of each row."""
    step = rows.abs().amax(dim=1, keepdim=True) / 127
    return (rows / step).round(), step


@needs_vnni
@given(rows=st.integers(1, 70), inputs=st.integers(1, 600), outputs=st.integers(1, 300), seed=st.integers(0, 9), biased=st.booleans())
def test_a_product_is_that_of_the_definition(rows: int, inputs: int, outputs: int, seed: int, biased: bool) -> None:
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
def test_a_row_is_the_same_to_the_bit_whatever_stands_beside_it() -> None:
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
def test_every_architecture_decodes_nearly_the_same(size: ModelSize) -> None:
    _, before, after = before_and_after(size, quantise)
    assert not torch.equal(before, after)
    # A 254th of the greatest entry is the most that rounding changes any; that stays small through all layers.
    assert float((before - after).norm() / (before - before.mean(dim=1, keepdim=True)).norm()) < 0.1


@needs_vnni
def test_a_model_directory_is_read_in_int8(tmp_path: Path) -> None:
    torch.manual_seed(0)
    directory = write_model(Transformer(TINY, 40), tmp_path / "model")
    search = Search(beam=2, max_extra=4)
    (quantised,), (exact,) = (
        Translator.load(directory, precision=precision).translate(["the dog sees a cat"], search) for precision in ("int8", "float32")
    )
    assert quantised[0].score != exact[0].score
    assert quantised[0].score == pytest.approx(exact[0].score, rel=0.05)


def test_a_cpu_that_lacks_the_instruction_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    with pytest.raises(UserError, match="precision int8: this CPU has no VNNI") as raised:
        quantise(Transformer(TINY, VOCAB))
    assert raised.value.exit_code == ExitCode.BAD_CONFIGURATION


def test_another_device_is_told() -> None:
    with pytest.raises(UserError, match="precision int8: is for CPUs"):
        quantise(Transformer(TINY, VOCAB).to("meta"))
