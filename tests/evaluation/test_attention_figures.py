import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from transformer_core.evaluation.attention import AttentionMaps
from transformer_core.evaluation.attention_figures import HeadFigure, choose_sentence, cross_figures, encoder_figures, opacity, readable

SOURCE, TARGET = ["▁the", "▁dog", "s", "</s>"], ["▁die", "▁Hunde", "</s>"]


def maps_of(encoder: NDArray[np.float32], layers: int = 6, heads: int = 2) -> AttentionMaps:
    """Every head of the encoder with the same weights; the decoder looks at the first piece alone."""
    cross = np.zeros((layers, heads, len(TARGET), len(SOURCE)), dtype=np.float32)
    cross[..., 0] = 1
    return AttentionMaps(SOURCE, ["<s>", *TARGET[:-1]], TARGET, {"encoder": np.tile(encoder, (layers, heads, 1, 1)), "cross": cross})


def in_words(figure: HeadFigure) -> str:
    """Without the marks around pieces that keep text from right to left in its place."""
    return figure.in_words.replace("\N{FIRST STRONG ISOLATE}", "").replace("\N{POP DIRECTIONAL ISOLATE}", "")


def strokes(figure: HeadFigure) -> dict[float, list[str]]:
    return {mark.opacity: re.findall("M[^M]+", mark.path) for mark in figure.marks}


def test_the_sentence_is_the_first_of_median_length() -> None:
    assert choose_sentence([(5, 5), (12, 12), (11, 9), (11, 11), (20, 20)]) == 2


@pytest.mark.parametrize(("length", "chosen"), [(3, 1), (60, 2)])
def test_a_corpus_of_very_short_or_long_sentences_is_shown_by_one_that_is_neither(length: int, chosen: int) -> None:
    assert choose_sentence([(length, length), (9, 9), (19, 19), *[(length, length)] * 5]) == chosen


@pytest.mark.parametrize("lengths", [[], [(40, 10), (10, 40)], [(10, 1)]], ids=["no sentence", "long", "no translation"])
def test_where_no_figure_would_be_readable_no_sentence_is_chosen(lengths: list[tuple[int, int]]) -> None:
    assert choose_sentence(lengths) is None


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60))))
def test_a_chosen_sentence_has_a_translation_and_few_pieces(lengths: list[tuple[int, int]]) -> None:
    chosen = choose_sentence(lengths)
    assert chosen is None or all(2 <= length <= 24 for length in lengths[chosen])


@pytest.mark.parametrize(("layers", "shown"), [(1, 1), (2, 1), (6, 5)])
def test_the_encoder_is_shown_by_its_last_layer_but_one(layers: int, shown: int) -> None:
    figures = encoder_figures(maps_of(np.eye(4, dtype=np.float32), layers))
    assert (figures.layer, figures.layers, [figure.head for figure in figures.heads]) == (shown, layers, [1, 2])


@pytest.mark.parametrize(("layers", "shown"), [(1, [1]), (2, [2, 1]), (6, [6, 5])])
def test_the_decoder_is_shown_by_its_last_two_layers(layers: int, shown: list[int]) -> None:
    assert [figures.layer for figures in cross_figures(maps_of(np.eye(4, dtype=np.float32), layers))] == shown


def test_a_line_goes_from_the_piece_that_attends_to_what_it_sees_as_strong_as_the_weight() -> None:
    weights = np.zeros((4, 4), dtype=np.float32)
    weights[0, 2], weights[0, 3] = 0.5, 0.25
    figure = encoder_figures(maps_of(weights)).heads[0]
    heights = {label.text: label.y for label in figure.labels}
    left, right = (next(label.x for label in figure.labels if label.anchor == anchor) for anchor in ("end", "start"))
    assert [label.text for label in figure.labels] == ["the", "dog", "·s", "</s>"] * 2
    ends = {opacity(0.5): heights["·s"], opacity(0.25): heights["</s>"]}
    for strength, (line,) in strokes(figure).items():
        x1, y1, x2, y2 = (float(number) for number in re.findall(r"[\d.]+", line))
        assert left < x1 < x2 < right
        assert (y1, y2) == (heights["the"], ends[strength])


def test_a_cell_stands_in_the_row_of_what_is_written_and_the_column_of_what_is_seen() -> None:
    figure = cross_figures(maps_of(np.eye(4, dtype=np.float32)))[0].heads[0]
    rows = {label.text: label.y for label in figure.labels if not label.upward}
    columns = {label.text: label.x for label in figure.labels if label.upward}
    assert (list(rows), list(columns)) == (["die", "Hunde", "</s>"], ["the", "dog", "·s", "</s>"])
    cells = [[float(number) for number in re.findall(r"[\d.]+", cell)] for cell in strokes(figure)[1.0]]
    assert [(x + width / 2, y) for x, y, width in cells] == [(columns["the"], row) for row in rows.values()]


def test_all_is_drawn_within_the_figure() -> None:
    figures = [encoder_figures(maps_of(np.full((4, 4), 0.25, dtype=np.float32))), *cross_figures(maps_of(np.eye(4, dtype=np.float32)))]
    for figure in (head for layer in figures for head in layer.heads):
        assert all(0 <= label.x <= figure.width and 0 <= label.y <= figure.height for label in figure.labels)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.eye(4), "100% on the piece itself"),
        (np.eye(4, k=-1), "75% on the piece before"),
        (np.eye(4, k=1), "75% on the piece after"),
        (np.tile([0.0, 0.0, 0.4, 0.6], (4, 1)), "60% on the end"),
        ([[0.2, 0.8, 0, 0], *[[0.25] * 4] * 3], "strongest: the ← dog, 0.80"),
    ],
)
def test_a_head_is_described_by_where_most_of_its_attention_goes(weights: object, words: str) -> None:
    assert in_words(encoder_figures(maps_of(np.array(weights, dtype=np.float32))).heads[0]) == words


def test_a_head_of_the_decoder_is_described_by_its_strongest_weight() -> None:
    assert in_words(cross_figures(maps_of(np.eye(4, dtype=np.float32)))[0].heads[0]) == "strongest: die ← the, 1.00"


def test_weights_of_a_training_that_diverged_are_not_drawn() -> None:
    figure = encoder_figures(maps_of(np.full((4, 4), np.nan, dtype=np.float32))).heads[0]
    assert (figure.marks, in_words(figure)) == ([], "strongest: the ← the, 0.00")


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_greater_weight_is_drawn_no_weaker(weight: float, other: float) -> None:
    assert 0 <= opacity(min(weight, other)) <= opacity(max(weight, other)) <= 1


@pytest.mark.parametrize(
    ("piece", "read"),
    [("▁dog", "dog"), ("s", "·s"), ("</s>", "</s>"), ("▁", "▁"), ("▁Schachbretter", "Schachbre…"), ("▁注意力就是你所需要的", "注意力就…")],
)
def test_pieces_are_written_as_one_reads_them_and_not_long(piece: str, read: str) -> None:
    assert readable(piece) == read
