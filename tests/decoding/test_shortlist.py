"""Shortlists: from aligned pairs, against brute force, and a translation that depends on its sentence alone."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from torch import Tensor

from tests.decoding.parity import Rows, WordsOnly, made_up_pairs
from tests.models.on_disk import TEXT, VOCAB, translations, write_drawn
from tests.refusals import refused
from transformer_core.corpus.tokens.shortlist import SHORTLIST, Shortlist, align
from transformer_core.corpus.tokens.subword import BOS, EOS, PAD, UNK
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.errors import UserError
from transformer_core.models.transformer import Transformer

SEARCH = Search(4, 0.6, max_extra=6, nbest=4)
SOURCES = [source for source, _ in made_up_pairs(60, seed=2_000)]
WORDS = range(EOS + 1, EOS + 13)
Outputs = list[list[tuple[list[int], float]]]


def shortlist(targets: dict[int, list[int]], frequent: Sequence[int] = ()) -> Shortlist:
    rows = [targets.get(token, []) for token in range(VOCAB)]
    ids = np.array([target for row in rows for target in row], np.int64)
    return Shortlist(np.cumsum([0, *map(len, rows)]), ids, np.array(sorted({PAD, UNK, BOS, EOS, *frequent}), np.int64))


# Each word, and the next two; so the list of a sentence depends on its words.
NEXT = shortlist({word: [other for other in (word, word + 1, word + 2) if other in WORDS] for word in WORDS})
EVERYTHING = shortlist({}, range(VOCAB))


def searched(model: Transformer, short: Shortlist | None, sources: Rows = SOURCES, batch: int = 200, starts: Rows | None = None) -> Outputs:
    translator = Translator(model, None, shortlist=short)  # type: ignore[arg-type]  # No text is made.
    lists = translator.translate_tokens(sources, SEARCH, batch, starts)
    return [[(hypothesis.ids, hypothesis.score) for hypothesis in hypotheses] for hypotheses in lists]


def same(found: Outputs, wanted: Outputs, within: float) -> bool:
    (ids, scores), (other_ids, other_scores) = (zip(*chain(*outputs), strict=True) for outputs in (found, wanted))
    return bool(ids == other_ids and scores == pytest.approx(other_scores, abs=within))


class Masked(Transformer):
    """Brute force: the logits of everything that is not in `allowed` are minus infinity."""

    allowed: Tensor

    def project(self, x: Tensor) -> Tensor:
        logits = super().project(x)
        return torch.full_like(logits, -torch.inf).index_copy(-1, self.allowed, logits.index_select(-1, self.allowed))


def copied(model: Transformer, kind: type[Transformer] = Transformer) -> Transformer:
    made = kind(model.size, VOCAB)
    made.load_state_dict(model.state_dict())
    return made.eval()


@pytest.fixture(scope="module")
def double(model: WordsOnly) -> Transformer:
    return copied(model).double()


@pytest.fixture(scope="module")
def alone(double: Transformer) -> Outputs:
    return [searched(double, NEXT, [source])[0] for source in SOURCES]


def test_the_outputs_are_those_of_a_softmax_over_the_list_of_the_sentence(double: Transformer, alone: Outputs) -> None:
    masked = copied(double, Masked).double()
    wanted = []
    for source in SOURCES:
        masked.allowed = torch.from_numpy(NEXT.of(source))  # type: ignore[assignment]
        wanted += searched(masked, None, [source])
    assert same(alone, wanted, within=1e-9)
    assert not same(alone, searched(double, None), within=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, len(SOURCES) - 1), min_size=1, max_size=30, unique=True), st.integers(1, 400))
def test_a_translation_does_not_depend_on_its_batch(double: Transformer, alone: Outputs, numbers: list[int], batch: int) -> None:
    found = searched(double, NEXT, [SOURCES[number] for number in numbers], batch=batch)
    assert same(found, [alone[number] for number in numbers], within=1e-9)


def test_a_prefix_may_be_beside_the_list_and_what_follows_it_stays_on_it(double: Transformer) -> None:
    source = [WORDS[0], WORDS[1], EOS]
    allowed = {*NEXT.of(source).tolist()}
    (((first, *rest), _), *_), *_ = searched(double, NEXT, [source], starts=[[WORDS[11]]])
    assert first == WORDS[11]
    assert {*rest} <= allowed | {first}


def test_aligned_subwords_the_copy_and_the_frequent_ones_are_on_the_list() -> None:
    """Source word w is 100 + w in the target; one pair in ten has a word of no counterpart."""
    draw = np.random.default_rng(1)
    rows = [draw.integers(10, 40, draw.integers(1, 8)).tolist() for _ in range(2_000)]
    pairs = [([*row, EOS], [*(100 + word for word in row), *([9] if number % 10 == 0 else []), EOS]) for number, row in enumerate(rows)]
    found = align(lambda: iter(pairs), 200, 3)
    for word in range(10, 40):
        assert found.targets[found.starts[word]] == 100 + word
        assert found.starts[word + 1] - found.starts[word] <= 3
    assert len(found.frequent) == 4 + 3 - 1  # EOS is one of the three most frequent.
    assert {PAD, UNK, BOS, EOS} <= {*found.frequent.tolist()}
    copies = align(lambda: iter([([5, 6, EOS], [7, 6, EOS])] * 50), 200, 1)
    assert 6 in copies.of([5, 6, EOS])


def test_a_damaged_file_or_one_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    file = tmp_path / SHORTLIST
    NEXT.save(file)
    again = Shortlist.load(file, VOCAB)
    assert all(np.array_equal(again.of(source), NEXT.of(source)) for source in SOURCES)
    with refused(65, r"shortlist.safetensors: not a shortlist for a vocabulary of 41\. Make it again: dvc repro --force "):
        Shortlist.load(file, VOCAB + 1)
    starts, zeros = np.zeros(VOCAB + 1), [0] * VOCAB
    shapes = {"starts": np.zeros(0)}, {"starts": starts[:, None]}, {"targets": np.zeros((0, 2))}, {"frequent": np.zeros(0)}
    contents = ([*zeros, 2], [1]), ([0, 5, *zeros[1:-1], 2], [1, 1]), ([*zeros, 1], [VOCAB]), ([*zeros, 1], [-1])
    for parts in (*shapes, *({"starts": np.array(begins), "targets": np.array(targets)} for begins, targets in contents)):
        save_file({"starts": starts, "targets": np.zeros(0), "frequent": np.arange(4), **parts}, file)
        with pytest.raises(UserError, match="not a shortlist for a vocabulary"):
            Shortlist.load(file, VOCAB)


def test_a_directory_without_a_list_and_several_models_are_refused(tmp_path: Path) -> None:
    directory = write_drawn(tmp_path / "model")
    with pytest.raises(UserError, match=r"model/shortlist.safetensors: no such file. Set average.shortlist"):
        Translator.load(directory, shortlist=True)
    EVERYTHING.save(directory / SHORTLIST)
    found, wanted = (translations(Translator.load(directory, shortlist=given), TEXT, Search()) for given in (True, False))
    assert [ranked[0].text for ranked in found] == [ranked[0].text for ranked in wanted]
    with pytest.raises(UserError, match="not supported with several models"):
        Translator.load(directory, directory, shortlist=True)
