"""Lines in, translations out, in the same order, however they were shared out."""

from copy import deepcopy
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.models.on_disk import SMALL, TEXT, VOCAB, overflowing_in_fp16, translations, write_drawn, write_model
from tests.models.test_architectures import SIZES, built, tokens
from tests.refusals import refused
from transformer_core.corpus.tokens.subword import Subword
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Hypothesis, Translator, batches_of
from transformer_core.models.architectures import build
from transformer_core.models.ops.choice import prepare_for_decoding
from transformer_core.models.translation import TranslationModel
from transformer_core.sizes import ModelSize

LINES = ["", *(f"{line} {end}" for line in TEXT for end in ("", "dog", "a house", "the cat sees"))]
SEARCH = Search(beam=2, max_extra=4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drawn(tmp_path_factory.mktemp("model") / "model")


def test_copies_on_several_devices_change_no_translation(directory: Path) -> None:
    """Scores to the last bits: the threads that copies run in may have another number of OpenMP threads than this one has been given."""
    alone = Translator.load(directory, precision="float64", device=torch.device("cpu"))
    shared = replace(alone, replicas=(deepcopy(alone.model), deepcopy(alone.model)))
    found, expected = ([*chain(*translations(each, LINES, SEARCH, batch_tokens=20))] for each in (shared, alone))
    assert [hypothesis.text for hypothesis in found] == [hypothesis.text for hypothesis in expected]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-12)


@torch.inference_mode()
def log_probabilities(model: TranslationModel, source: Tensor, target: Tensor) -> Tensor:
    """Of every next token along these targets, (2B, T), of which each source has two: decoded a step at a time."""
    state = model.start(source, source > 0)
    first = model.step(target[::2, 0], state)
    state.select(torch.arange(len(source)).repeat_interleave(2), None)
    return torch.cat([first, *(model.step(column, state) for column in target[:, 1:].T)]).log_softmax(dim=1)


@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
def test_a_model_prepared_for_decoding_computes_the_same(size: ModelSize) -> None:
    model, steps = built(size), (tokens(3, 9), tokens(6, 5))
    before = log_probabilities(model, *steps)
    prepare_for_decoding(model)
    torch.testing.assert_close(log_probabilities(model, *steps), before, rtol=0, atol=1e-12)


def test_only_the_text_that_is_read_is_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, decode = [], Subword.decode
    monkeypatch.setattr(Subword, "decode", lambda *given: made.append(decode(*given)) or made[-1])
    (ranked,) = translations(Translator.load(directory), LINES[1:2], SEARCH)
    assert len(ranked) == SEARCH.beam
    assert [ranked[0].text, ranked[0].text] == 2 * made


@pytest.mark.parametrize("search", [Search(beam=1), SEARCH], ids=["greedy", "beam"])
def test_logits_that_overflow_in_fp16_are_an_error_or_an_empty_translation(search: Search, tmp_path: Path) -> None:
    directory = write_model(overflowing_in_fp16(build(replace(SMALL, norm="pre"), VOCAB)), tmp_path / "model")
    cpu = torch.device("cpu")
    assert all(len(ranked) >= 1 for ranked in translations(Translator.load(directory, device=cpu), LINES, search))
    half = Translator.load(directory, precision="fp16", device=cpu)
    with refused(78, r"^precision fp16: the logits of a sentence are not finite\. Take bf16 or float32\.$"):
        translations(half, LINES, search)
    assert translations(replace(half, strict=False), LINES[:3], search) == [[Hypothesis("", 0.0, 0.0, 0)]] * 3
    with refused(78, r"^precision fp16: "):
        translations(Translator.load(directory, directory, precision="fp16", device=cpu), LINES, search)


@given(lengths=st.lists(st.integers(1, 60), max_size=60), budget=st.integers(1, 200))
def test_each_sentence_is_in_one_batch_and_none_passes_the_budget(lengths: list[int], budget: int) -> None:
    batches = batches_of(lengths, budget)
    assert sorted(number for batch in batches for number in batch) == [number for number, length in enumerate(lengths) if length > 1]
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= budget
