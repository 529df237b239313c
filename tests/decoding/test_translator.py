"""Lines in, translations out, in the same order, however they were shared out."""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.models.on_disk import SMALL, TEXT, VOCAB, overflowing_in_fp16, write_drawn, write_model
from tests.refusals import refused
from transformer_core.decoding.beam import Search
from transformer_core.decoding.sampling import Sampling
from transformer_core.decoding.translator import Hypothesis, Translator, batches_of
from transformer_core.models.architectures import build

LINES = ["", *(f"{line} {end}" for line in TEXT for end in ("", "dog", "a house", "the cat sees"))]
SEARCH = Search(beam=2, max_extra=4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drawn(tmp_path_factory.mktemp("model") / "model")


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_replicas_share_the_batches_and_change_no_translation(directory: Path, replicas: int) -> None:
    alone = Translator.load(directory, precision="float64", device=torch.device("cpu"))
    model = alone.model
    copies = tuple(deepcopy(model) for _ in range(replicas))
    used = Counter[int]()
    for number, copied in enumerate(copies):
        start = copied.start

        def counted(source: Tensor, mask: Tensor, number: int = number, start: object = start) -> object:
            used[number] += 1
            return start(source, mask)  # type: ignore[operator]

        copied.start = counted  # type: ignore[method-assign]

    shared = Translator(copies[0], alone.subword, copies[1:]).translate(LINES, SEARCH, batch_tokens=20)
    single = Translator(model, alone.subword).translate(LINES, SEARCH, batch_tokens=20)

    assert [[one.text for one in hypotheses] for hypotheses in shared] == [[one.text for one in hypotheses] for hypotheses in single]
    batches = len(batches_of([len(alone.subword.encode(line)) for line in LINES], 20))
    assert sum(used.values()) == batches
    assert len(used) == min(replicas, batches)


def test_the_fault_of_one_replica_is_the_fault_of_all(directory: Path) -> None:
    translator = Translator.load(directory, device=torch.device("cpu"))
    broken = Translator.load(directory, device=torch.device("cpu")).model

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    broken.start = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="out of memory"):
        Translator(translator.model, translator.subword, (broken,)).translate(LINES, SEARCH, batch_tokens=20)


@pytest.mark.parametrize("search", [Search(beam=1), SEARCH, Sampling(2, max_extra=4)], ids=["greedy", "beam", "sampling"])
def test_logits_that_overflow_in_fp16_are_an_error_or_an_empty_translation(search: Search | Sampling, tmp_path: Path) -> None:
    directory = write_model(overflowing_in_fp16(build(replace(SMALL, norm="pre"), VOCAB)), tmp_path / "model")
    cpu = torch.device("cpu")
    assert all(len(ranked) >= 1 for ranked in Translator.load(directory, device=cpu).translate(LINES, search))
    half = Translator.load(directory, precision="fp16", device=cpu)
    with refused(78, r"^precision fp16: the logits of a sentence are not finite\. Take bf16 or float32\.$"):
        half.translate(LINES, search)
    assert replace(half, strict=False).translate(LINES[:3], search) == [[Hypothesis("", 0.0, 0.0, 0)]] * 3
    with refused(78, r"^precision fp16: "):
        Translator.load(directory, directory, precision="fp16", device=cpu).translate(LINES, search)


@given(lengths=st.lists(st.integers(1, 60), max_size=60), budget=st.integers(1, 200))
def test_each_sentence_is_in_one_batch_and_none_passes_the_budget(lengths: list[int], budget: int) -> None:
    batches = batches_of(lengths, budget)
    assert sorted(number for batch in batches for number in batch) == [number for number, length in enumerate(lengths) if length > 1]
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= budget
