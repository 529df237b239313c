"""The search of a parsing model, which writes valid trees alone."""

from pathlib import Path

import pytest
import torch

from tests.models.on_disk import SMALL, translations, write_model
from transformer_core.decoding.beam import Search
from transformer_core.decoding.translator import Translator
from transformer_core.models.architectures import build
from transformer_core.parsing.trees import WORD_SYMBOL, Tree, repaired

SYMBOLS = [f"\u2581{symbol}" for symbol in ("(S", ")S", "(NP", ")NP", "(VP", WORD_SYMBOL)]  # (VP cannot be closed.
SENTENCES = ["the dog sees a cat", "a", "cat cat cat cat cat cat cat cat cat cat cat cat", "a house sees"]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_model_that_has_learnt_nothing_writes_valid_trees_over_all_words(tmp_path: Path, beam: int) -> None:
    torch.manual_seed(3)
    directory = write_model(build(SMALL, 46), tmp_path / "model", target="tree", user_symbols=SYMBOLS)
    translator = Translator.load(directory)
    search = Search(beam, max_extra=300)
    for sentence, outputs in zip(SENTENCES, translations(translator, SENTENCES, search), strict=True):
        gold = [Tree("NN", word=word) for word in sentence.split()]
        assert outputs
        for output in outputs:
            assert output.text.split().count(WORD_SYMBOL) == len(gold)
            assert "(VP" not in output.text
            assert not repaired(output.text, gold)[1]
    together = [outputs[0].text for outputs in translations(translator, SENTENCES, search)]
    assert together == [translations(translator, [sentence], search)[0][0].text for sentence in SENTENCES]
