"""The start of a training from a model with another vocabulary."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.corpus.encoded import learnt_subword
from tests.models.on_disk import SMALL, TEXT
from transformer_core.models.architectures import build
from transformer_core.presets import TransformerSize
from transformer_core.training.start import new_model, take_over

OLD, NEW = ["<pad>", "<s>", "a", "b", "c"], ["<pad>", "<s>", "c", "d", "a"]


@pytest.mark.parametrize("tied", ["all", "none"])
def test_shared_subwords_keep_their_rows_and_everything_else_is_the_parents(tied: str) -> None:
    size = TransformerSize(layers=1, d_model=8, d_ff=16, heads=2, d_k=4, d_v=4, dropout=0.0, tied=tied, output_bias=True)
    parent, model = build(size, 5), build(size, 5)
    torch.nn.init.normal_(parent.output_bias)
    trained, fresh = parent.state_dict(), {name: weight.clone() for name, weight in model.state_dict().items()}
    assert take_over(model, parent, size, OLD, NEW) == 4
    over_vocabulary = {name for name in fresh if "embedding" in name or name in ("projection.weight", "output_bias")}
    assert len(over_vocabulary) == {"all": 2, "none": 4}[tied]
    for name, weight in model.state_dict().items():
        if name in over_vocabulary:
            assert torch.equal(weight[[0, 1, 2, 4]], trained[name][[0, 1, 4, 2]])
            assert torch.equal(weight[3], fresh[name][3])
        else:
            assert torch.equal(weight, trained[name])


def test_a_new_model_of_words_knows_which_subwords_begin_one(tmp_path: Path) -> None:
    subword, size = learnt_subword(TEXT, tmp_path / "spm.model"), replace(SMALL, source_unit="word")
    assert new_model(size, subword, 1).state_dict()["words.begins"].tolist() == subword.begins_word
