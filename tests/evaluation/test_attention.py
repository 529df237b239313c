"""Attention weights of a pair against formulas written out here."""

import json
import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.corpus.encoded import learnt_subword
from tests.models.on_disk import TEXT
from tests.refusals import refused
from transformer_core.corpus.tokens.subword import BOS, Subword
from transformer_core.evaluation.attention import AttentionMaps, Kind, attention_maps
from transformer_core.evaluation.attention_picture import attention_picture, fonts_of
from transformer_core.models.architectures import build
from transformer_core.models.embeddings import sinusoidal_positions
from transformer_core.models.layers import Stream
from transformer_core.models.recurrent import AdditiveAttention, Recurrent
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel
from transformer_core.presets import ConvolutionalSize, ModelSize, RecurrentSize, TransformerSize

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


def embedded(model: Transformer, tokens: list[int]) -> Tensor:
    positions = sinusoidal_positions(len(tokens), 16, torch.float64)
    return model.embedding.weight[tokens].detach() * 4 + positions  # 4 is the root of d_model.


def assert_softmax(maps: AttentionMaps, kind: Kind, query: Tensor, key: Tensor, causal: bool = False) -> None:
    """Each head's weights in the first layer are the softmax of its (T, H * 6) queries and (S, H * 6) keys, over d_k = 6."""
    for head in range(4):
        queries, keys = (each[:, 6 * head : 6 * head + 6].tolist() for each in (query, key))
        for row, asked in enumerate(queries):
            seen = keys[: row + 1] if causal else keys
            energies = [math.exp(sum(a * b for a, b in zip(asked, one, strict=True)) / math.sqrt(6)) for one in seen]
            wanted = [energy / sum(energies) for energy in energies] + [0.0] * (len(keys) - len(seen))
            assert maps.of(kind, 1, head + 1)[row].tolist() == pytest.approx(wanted, abs=1e-6)


def test_the_first_layers_of_encoder_and_decoder_are_the_papers_equation_1(subword: Subword) -> None:
    model = built(SIZE, subword)
    assert isinstance(model, Transformer)
    maps = maps_of(SIZE, subword)
    source, read = subword.encode(TEXT[0]), [BOS, *subword.encode(TEXT[2])[:-1]]
    for kind, layer, tokens in (("encoder", model.encoder[0], source), ("decoder", model.decoder[0], read)):
        x = embedded(model, tokens)
        assert_softmax(maps, kind, layer.self_attention.query(x), layer.self_attention.key(x), causal=kind == "decoder")


def test_cross_attention_asks_the_encoders_output(subword: Subword) -> None:
    model = built(SIZE, subword)
    assert isinstance(model, Transformer)
    source, read = subword.encode(TEXT[0]), [BOS, *subword.encode(TEXT[2])[:-1]]
    layer, x = model.decoder[0], embedded(model, read)[None]
    with torch.no_grad():
        memory = model.encode(torch.tensor([source]), torch.ones(1, len(source), dtype=torch.bool))
        causal = torch.ones(len(read), len(read), dtype=torch.bool).tril()
        x = layer.round_self_attention.after(Stream.of(x), layer.self_attention(*layer.self_attention.project(x), causal)).residual
        assert_softmax(maps_of(SIZE, subword), "cross", layer.cross_attention.query(x)[0], layer.cross_attention.key(memory)[0])


@pytest.mark.parametrize("size", [SIZE, replace(SIZE, norm="pre"), replace(SIZE, neighbourhood=3)], ids=["paper", "pre-norm", "neighbours"])
def test_every_row_sums_to_one_and_no_position_looks_ahead(size: TransformerSize, subword: Subword) -> None:
    maps = maps_of(size, subword)
    assert tuple(maps.weights) == get_args(Kind)
    for kind, weights in maps.weights.items():
        assert weights.shape == (2, 4, len(maps.rows(kind)), len(maps.columns(kind)))
        assert weights.dtype == np.float32
        assert weights.sum(axis=3) == pytest.approx(1, abs=1e-6)
    ahead = np.triu(np.ones(maps.weights["decoder"].shape[2:], dtype=bool), 1)
    assert not maps.weights["decoder"][:, :, ahead].any()


def test_a_neighbourhood_is_all_that_self_attention_sees(subword: Subword) -> None:
    maps = maps_of(replace(SIZE, neighbourhood=3), subword)
    assert ((maps.weights["encoder"] > 0).sum(axis=3) == 3).all()
    assert (maps.weights["cross"] > 0).all()


def test_pieces_say_what_is_read_and_what_is_predicted(subword: Subword) -> None:
    maps = maps_of(SIZE, subword)
    assert "".join(maps.source) == "▁the▁dog▁sees▁a▁cat</s>"
    assert "".join(maps.read) == "<s>▁der▁Hund▁sieht▁eine▁Katze"
    assert "".join(maps.predicted) == "▁der▁Hund▁sieht▁eine▁Katze</s>"
    assert (maps.rows("cross"), maps.columns("cross")) == (maps.predicted, maps.source)
    assert (maps.rows("decoder"), maps.columns("decoder")) == (maps.read, maps.read)
    assert (maps.rows("encoder"), maps.columns("encoder")) == (maps.source, maps.source)


def test_looking_changes_nothing(subword: Subword) -> None:
    model = built(SIZE, subword)
    source, target = torch.tensor([subword.encode(TEXT[0])]), torch.tensor([[BOS, 7, 8]])
    with torch.no_grad():
        before = model(source, source > 0, target)
        attention_maps(model, subword, subword.encode(TEXT[0]), subword.encode(TEXT[2]))
        assert torch.equal(model(source, source > 0, target), before)


def test_an_additive_attention_is_bahdanaus_of_the_state_before(subword: Subword) -> None:
    size = RecurrentSize(layers=2, d_model=16, dropout=0.1)
    model = built(size, subword)
    assert isinstance(model, Recurrent)
    assert isinstance(model.attention, AdditiveAttention)
    maps = maps_of(size, subword)
    assert list(maps.weights) == ["cross"]
    assert maps.weights["cross"].shape == (1, 1, len(maps.predicted), len(maps.source))
    source, read = torch.tensor([subword.encode(TEXT[0])]), [BOS, *subword.encode(TEXT[2])[:-1]]
    with torch.no_grad():
        state = model.start(source, source > 0)
        for row, token in enumerate(read):
            asked = model.attention.of_state.weight @ state.hidden[-1][0][0]
            keys = state.memory[0] @ model.attention.of_memory.weight.T
            energies = [math.exp(float(model.attention.energy.weight[0] @ torch.tanh(asked + key))) for key in keys]
            wanted = [energy / sum(energies) for energy in energies]
            assert maps.of("cross", 1, 1)[row].tolist() == pytest.approx(wanted, abs=1e-6)
            model.step(torch.tensor([token]), state)


def test_a_luong_decoders_map_is_of_its_new_state_with_source_columns_in_order(subword: Subword) -> None:
    size = RecurrentSize(layers=1, d_model=16, dropout=0.1, attention="dot", decoder="luong", bidirectional=False, reverse_source=True)
    model = built(size, subword)
    assert isinstance(model, Recurrent)
    maps = maps_of(size, subword)
    source, read = torch.tensor([subword.encode(TEXT[0])]), [BOS, *subword.encode(TEXT[2])[:-1]]
    with torch.no_grad():
        state = model.start(source, source > 0)
        for row, token in enumerate(read):
            model.step(torch.tensor([token]), state)
            wanted = (state.memory[0] @ state.hidden[-1][0][0]).softmax(dim=0)
            assert maps.of("cross", 1, 1)[row].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    "size",
    [RecurrentSize(layers=1, d_model=16, dropout=0.0, attention="none"), ConvolutionalSize(layers=2, d_model=16, dropout=0.0)],
    ids=["no attention", "convolutional"],
)
def test_a_model_that_keeps_no_weights_is_refused(size: ModelSize, subword: Subword) -> None:
    with refused(78, "this model keeps no attention weights"):
        maps_of(size, subword)


def test_a_document_has_the_chosen_maps_and_is_json(subword: Subword) -> None:
    maps = maps_of(SIZE, subword)
    document = json.loads(json.dumps(maps.document(["cross", "decoder"], [2], [1, 4])))
    assert [(one["kind"], one["layer"], one["head"]) for one in document["attention"]] == [
        ("cross", 2, 1),
        ("cross", 2, 4),
        ("decoder", 2, 1),
        ("decoder", 2, 4),
    ]
    assert np.array(document["attention"][1]["weights"]) == pytest.approx(maps.of("cross", 2, 4), abs=1e-6)
    assert (document["source"], document["target_read"], document["target_predicted"]) == (maps.source, maps.read, maps.predicted)


def test_a_picture_shows_the_weights_of_each_chosen_head_with_their_pieces(subword: Subword) -> None:
    maps, shown = maps_of(SIZE, subword), [(layer, head) for layer in (1, 2) for head in (1, 2, 3, 4)]
    dog, hund = ["the", "dog", "sees", "a", "cat", "</s>"], ["der", "Hund", "sieht", "eine", "Katze"]
    labels = {"encoder": (dog, dog), "decoder": (["<s>", *hund], ["<s>", *hund]), "cross": ([*hund, "</s>"], dog)}
    for kind in get_args(Kind):
        figure = attention_picture(maps, kind, shown, 4, fonts_of(maps))
        *panels, _ = figure.axes  # The last is the scale of colours.
        assert [panel.get_title() for panel in panels] == [f"layer {layer}, head {head}" for layer, head in shown]
        for panel, (layer, head) in zip(panels, shown, strict=True):
            np.testing.assert_array_equal(panel.images[0].get_array(), maps.weights[kind][layer - 1, head - 1])
            rows, columns = ([tick.get_text() for tick in axis.get_ticklabels()] for axis in (panel.yaxis, panel.xaxis))
            assert tuple("".join(pieces).replace("·", "") for pieces in (rows, columns)) == tuple(map("".join, labels[kind]))
    headings = [attention_picture(maps, kind, shown, 4, fonts_of(maps)).texts[0].get_text().split("\n")[2:] for kind in get_args(Kind)]
    assert headings == [["the dog sees a cat"], ["der Hund sieht eine Katze"], ["the dog sees a cat", "der Hund sieht eine Katze"]]
