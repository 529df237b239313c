"""A translation depends on its sentence alone: the same in float64, up to ties in float32, nearly always in bf16."""

from collections.abc import Sequence
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.parity import WordsOnly, differences, made_up_pairs, padded
from transformer_core.config import Precision
from transformer_core.corpus.tokens.subword import PAD
from transformer_core.decoding.beam import Search, beam_search
from transformer_core.decoding.hypotheses import Finished
from transformer_core.models.ops.choice import prepare_for_decoding
from transformer_core.models.precision import low_precision, weights_dtype

SEARCH = Search(4, 0.6, "power", max_extra=6)
SOURCES = [source for source, _ in made_up_pairs(120, seed=2_000)]


def prepared(model: WordsOnly, precision: Precision) -> WordsOnly:
    """A copy as `load_for_decoding` makes it."""
    made = deepcopy(model).to(low_precision(model.device, precision) or weights_dtype(precision))
    prepare_for_decoding(made)
    return made


def translated(model: WordsOnly, numbers: Sequence[int], batch: int, padding: int = 0) -> dict[int, list[Finished]]:
    """The outputs of these sentences, so many at a time in the order given, with so many columns of padding more than they need."""
    found = {}
    for first in range(0, len(numbers), batch):
        chosen = numbers[first : first + batch]
        tokens = torch.nn.functional.pad(padded([SOURCES[number] for number in chosen]), (0, padding), value=PAD)
        found.update(zip(chosen, beam_search(model, tokens, tokens != PAD, SEARCH), strict=True))
    return found


@pytest.fixture(scope="module")
def double(model: WordsOnly) -> WordsOnly:
    return prepared(model, "float64")


@pytest.fixture(scope="module")
def alone(double: WordsOnly) -> dict[int, list[Finished]]:
    return translated(double, range(len(SOURCES)), batch=1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(range(len(SOURCES))), min_size=1, max_size=30, unique=True), st.integers(1, 30), st.integers(0, 9))
def test_in_float64_batch_order_and_padding_change_no_output(
    double: WordsOnly, alone: dict[int, list[Finished]], numbers: list[int], batch: int, padding: int
) -> None:
    for number, outputs in translated(double, numbers, batch, padding).items():
        assert [output.tokens for output in outputs] == [output.tokens for output in alone[number]]
        # Not to the bit: kernels add up in another order where the shape is another one.
        assert [output.score for output in outputs] == pytest.approx([output.score for output in alone[number]], abs=1e-11)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_in_float32_they_change_ties_alone_and_in_bf16_nearly_all_stay(model: WordsOnly, precision: Precision) -> None:
    model, numbers = prepared(model, precision), range(len(SOURCES))
    together = translated(model, numbers[::-1], batch=50, padding=3)
    pairs = [(translated(model, [number], batch=1)[number], together[number]) for number in numbers]
    if precision == "float32":
        assert {*differences(model, SOURCES, *zip(*pairs, strict=True), SEARCH)} <= {"tie"}  # type: ignore[misc]
    assert sum(single[0].tokens == other[0].tokens for single, other in pairs) >= 0.98 * len(SOURCES)
    assert len({tuple(single[0].tokens) for single, _ in pairs}) > 60
