"""Scores of a held-out split."""

from pathlib import Path

import pytest
import torch

from tests.corpus.encoded import learnt_subword, write_binarized
from tests.models.on_disk import SMALL, TEXT, VOCAB
from transformer_core import recipes
from transformer_core.corpus.tokens.binary import open_split
from transformer_core.corpus.tokens.subword import EOS
from transformer_core.models.architectures import build
from transformer_core.tasks import TRANSLATION
from transformer_core.training import validation
from transformer_core.training.devices import Rank


@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_as_long_as_a_document_has_no_part_in_the_scores(side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_INPUT", 20)
    torch.manual_seed(0)
    model = build(SMALL, VOCAB).double()
    sides = [[[5 + number, 6, 7, EOS] for number in range(9)], [[8, 9 + number, EOS] for number in range(9)]]
    write_binarized(tmp_path / "short", *sides, VOCAB)
    sides[side].insert(4, [*[9] * 21, EOS])
    sides[1 - side].insert(4, [9, EOS])
    write_binarized(tmp_path / "long", *sides, VOCAB)
    subword = learnt_subword(TEXT, tmp_path / "spm.model")
    settings, rank = recipes.load("tatoeba").train.model_copy(update={"precision": "float64"}), Rank(0, 1, torch.device("cpu"))
    short, long = (
        validation.Validation(model, open_split(tmp_path / name / "train"), subword, [""] * 10, settings, TRANSLATION, rank, bool)
        for name in ("short", "long")
    )
    assert (short.left_out, long.left_out) == (0, 1)
    assert short.teacher_forced() == long.teacher_forced()
