"""Attention weights of a pair against formulas written out here."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from tests.corpus.encoded import learnt_subword
from tests.models.on_disk import TEXT
from tests.refusals import refused
from transformer_core.baselines.recurrent import Recurrent
from transformer_core.baselines.sizes import RecurrentSize
from transformer_core.corpus.tokens.subword import BOS, Subword
from transformer_core.evaluation.attention import attention_maps
from transformer_core.evaluation.heads import Pronoun, count_heads, read_pronouns
from transformer_core.models.architectures import build
from transformer_core.models.translation import TranslationModel
from transformer_core.parsing.sizes import ParserSize
from transformer_core.pictures.attention_maps import AttentionMaps, Kind, attention_picture
from transformer_core.presets import TransformerSize
from transformer_core.sizes import ModelSize

SIZE = TransformerSize(layers=2, d_model=16, d_ff=32, heads=4, d_k=6, d_v=5, dropout=0.1)


@pytest.fixture(scope="module")
def subword(tmp_path_factory: pytest.TempPathFactory) -> Subword:
    return learnt_subword(TEXT, tmp_path_factory.mktemp("subword") / "spm.model")


def built(size: ModelSize, subword: Subword) -> TranslationModel:
    torch.manual_seed(3)
    return build(size, subword.vocab_size).double().eval()


def maps_of(size: ModelSize, subword: Subword) -> AttentionMaps:
    return attention_maps(built(size, subword), subword, subword.encode(TEXT[0]), subword.encode(TEXT[2]))


def test_encoder_and_decoder_may_differ_in_their_layers(subword: Subword) -> None:
    maps = maps_of(replace(SIZE, encoder_layers=3, decoder_layers=1), subword)
    assert {kind: maps.layers(kind, [1, 2, 3]) for kind in maps.weights} == {"encoder": [1, 2, 3], "decoder": [1], "cross": [1]}
    shown = maps.document(["encoder", "cross"], [1, 3], [2])["attention"]
    assert [(one["kind"], one["layer"]) for one in shown] == [("encoder", 1), ("encoder", 3), ("cross", 1)]


def test_a_head_whose_queries_are_zero_attends_to_all_alike(subword: Subword) -> None:
    """That head alone, of its kind and its layer; the last row of a decoder sees all that is read."""
    for kind, place in (("encoder", "encoder.1.self"), ("decoder", "decoder.1.self"), ("cross", "decoder.1.cross")):
        model = built(SIZE, subword)
        with torch.no_grad():
            model.get_parameter(f"{place}_attention.query.weight")[12:18] = 0  # Of the third head, d_k = 6.
        maps = attention_maps(model, subword, subword.encode(TEXT[0]), subword.encode(TEXT[2]))
        alike = np.concatenate([np.ptp(weights[:, :, -1], axis=-1) < 1e-6 for weights in maps.weights.values()])
        assert [(list(maps.weights)[row // 2], row % 2, head) for row, head in np.argwhere(alike)] == [(kind, 1, 2)]


@pytest.mark.parametrize("size", [SIZE, replace(SIZE, norm="pre")], ids=["paper", "pre-norm"])
def test_every_row_sums_to_one_and_no_position_looks_ahead(size: TransformerSize, subword: Subword) -> None:
    maps = maps_of(size, subword)
    assert tuple(maps.weights) == get_args(Kind)
    source, target = len(maps.source), len(maps.read)
    for (kind, weights), sides in zip(maps.weights.items(), ((source, source), (target, target), (target, source)), strict=True):
        assert weights.shape == (2, 4, *sides), kind
        assert weights.dtype == np.float32
        assert weights.sum(axis=3) == pytest.approx(1, abs=1e-6)
    ahead = np.triu(np.ones(maps.weights["decoder"].shape[2:], dtype=bool), 1)
    assert not maps.weights["decoder"][:, :, ahead].any()


def test_a_model_of_words_has_a_column_for_each_word(subword: Subword) -> None:
    model = built(ParserSize(**{**vars(SIZE), "architecture": "parser"}), subword)
    model.read_vocabulary(subword.pieces)
    maps = attention_maps(model, subword, subword.encode(TEXT[0]), subword.encode(TEXT[2]))
    assert [piece.strip("\u2581") for piece in maps.source] == [*TEXT[0].split(), "</s>"]
    assert {maps.weights[kind].shape[-1] for kind in ("encoder", "cross")} == {6}


def test_looking_changes_nothing(subword: Subword) -> None:
    model = built(SIZE, subword)
    source, target = torch.tensor([subword.encode(TEXT[0])]), torch.tensor([[BOS, 7, 8]])
    with torch.no_grad():
        before = model(source, source > 0, target)
        attention_maps(model, subword, subword.encode(TEXT[0]), subword.encode(TEXT[2]))
        assert torch.equal(model(source, source > 0, target), before)


def test_a_luong_decoders_map_is_of_its_new_state_with_source_columns_in_order(subword: Subword) -> None:
    size = RecurrentSize(layers=1, d_model=16, dropout=0.1, attention="dot", decoder="luong", bidirectional=False, reverse_source=True)
    model = built(size, subword)
    assert isinstance(model, Recurrent)
    maps = maps_of(size, subword)
    assert {kind: weights.shape for kind, weights in maps.weights.items()} == {"cross": (1, 1, len(maps.predicted), len(maps.source))}
    source, read = torch.tensor([subword.encode(TEXT[0])]), [BOS, *subword.encode(TEXT[2])[:-1]]
    with torch.no_grad():
        state = model.start(source, source > 0)
        for row, token in enumerate(read):
            model.step(torch.tensor([token]), state)
            wanted = (state.memory[0] @ state.hidden[-1][0][0]).softmax(dim=0)
            assert maps.weights["cross"][0, 0, row].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_a_picture_shows_the_weights_of_each_chosen_head_with_their_pieces(subword: Subword) -> None:
    maps, shown = maps_of(SIZE, subword), [(layer, head) for layer in (1, 2) for head in (1, 2, 3, 4)]
    dog, hund = ["the", "dog", "sees", "a", "cat", "</s>"], ["der", "Hund", "sieht", "eine", "Katze"]
    labels = {"encoder": (dog, dog), "decoder": (["<s>", *hund], ["<s>", *hund]), "cross": ([*hund, "</s>"], dog)}
    for kind in get_args(Kind):
        figure = attention_picture(maps, kind, shown, 4)
        *panels, _ = figure.axes  # The last is the scale of colours.
        assert [panel.get_title() for panel in panels] == [f"layer {layer}, head {head}" for layer, head in shown]
        for panel, (layer, head) in zip(panels, shown, strict=True):
            np.testing.assert_array_equal(panel.images[0].get_array(), maps.weights[kind][layer - 1, head - 1])
            rows, columns = ([tick.get_text() for tick in axis.get_ticklabels()] for axis in (panel.yaxis, panel.xaxis))
            assert tuple("".join(pieces).replace("·", "") for pieces in (rows, columns)) == tuple(map("".join, labels[kind]))
    headings = [attention_picture(maps, kind, shown, 4).texts[0].get_text().split("\n")[2:] for kind in get_args(Kind)]
    assert headings == [["the dog sees a cat"], ["der Hund sieht eine Katze"], ["the dog sees a cat", "der Hund sieht eine Katze"]]


def test_what_heads_look_at_most_is_counted_and_whether_a_pronoun_finds_its_noun() -> None:
    """Four heads: at the end token, at the token before, at the one behind, and at the one three before or else the first."""
    pieces = ["\u2581the", "\u2581do", "g", "\u2581sees", "\u2581it", ".", "</s>"]
    targets = [[6] * 7, [0, 0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 6], [0, 0, 0, 0, 1, 2, 3]]
    maps = AttentionMaps(pieces, [], [], {"encoder": np.eye(7, dtype=np.float32)[np.array([targets])]})
    found = count_heads([Pronoun("the dog sees it.", "it", "dog", "sees")], [maps])
    looked = {name: (6 * shares[0]).round().tolist() for name, shares in found.looked.items()}  # Of six tokens.
    assert (looked["end token"], looked["previous token"][1:3]) == ([6, 0, 1, 0], [5, 0])
    assert (looked["next token"][1:3], looked["same word"][1:3]) == ([0, 5], [2, 1])  # The first token, and the second piece of "dog".
    assert found.found[0, :, 0].tolist() == [[False, False, False, True], [False, True, False, False]]
    *table, together, counts = found.rows()
    assert len(table) == 1 + 4
    assert together == "a head finds the noun: 1 of 1 sentences; the other noun: 1"
    assert counts.endswith("of the tokens: end token 1, previous token 1, next token 1, same word 1")
    quoted = replace(maps, source=["\u2581the", '\u2581"', "dog", "\u2581sees", "\u2581it", ".", "</s>"])
    assert count_heads([Pronoun('the "dog sees it.', "it", "dog", "sees")], [quoted]).found.shape == (1, 2, 1, 4)
    with refused(65, "the Dog sees it.: this model reads no word 'Dog' there"):  # In lower case.
        count_heads([Pronoun("the Dog sees it.", "it", "Dog", "sees")], [maps])


@pytest.mark.parametrize("line", ["a cat\tcat\ta", "a cat\tcat\ta\tdog", ""])
def test_a_line_without_a_pronoun_and_two_nouns_of_its_sentence_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "pronouns.tsv").write_text(f"a dog sees it\tit\ta\tdog\n{line}\n")
    with refused(65, r"pronouns.tsv:2: not a sentence and, after tabs"):
        read_pronouns(tmp_path / "pronouns.tsv")
