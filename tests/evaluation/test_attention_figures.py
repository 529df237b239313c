"""The figures of attention: which lines and cells are drawn, how strong, and in which colours."""

from itertools import combinations, pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.evaluation.drawn import Drawn
from transformer_core.evaluation.attention import AttentionMaps
from transformer_core.evaluation.attention_figures import (
    HeadFigure,
    choose_sentence,
    cross_figures,
    encoder_figures,
    head_colour,
    opacity,
    readable,
    word_figure,
)

SOURCE, TARGET = ["▁the", "▁dog", "s", "</s>"], ["▁die", "▁Hunde", "</s>"]
SENTENCE, WORDS = ["▁the", "▁dog", "s", "▁see", ".", "</s>"], ["the", "dogs", "see", ".", "</s>"]
BASELINE = 5  # A text's y is that of its baseline, at most so many pixels below its middle.


def maps_of(encoder: NDArray[np.float32], layers: int = 6, heads: int = 2) -> AttentionMaps:
    """Every head of the encoder with the same weights; the decoder looks at the first piece alone."""
    cross = np.zeros((layers, heads, len(TARGET), len(SOURCE)), dtype=np.float32)
    cross[..., 0] = 1
    return AttentionMaps(SOURCE, ["<s>", *TARGET[:-1]], TARGET, {"encoder": np.tile(encoder, (layers, heads, 1, 1)), "cross": cross})


def in_words(figure: HeadFigure) -> str:
    """Without the marks around pieces that keep text from right to left in its place."""
    return figure.in_words.replace("\N{FIRST STRONG ISOLATE}", "").replace("\N{POP DIRECTIONAL ISOLATE}", "")


@pytest.mark.parametrize(
    ("lengths", "chosen"),
    [
        ([(5, 5), (12, 12), (11, 9), (11, 11), (20, 20)], 2),
        ([(3, 3), (9, 9), (19, 19), *[(3, 3)] * 5], 1),
        ([(60, 60), (9, 9), (19, 19), (24, 24), *[(60, 60)] * 5], 2),
        ([(25, 24), (24, 25), (2, 1), (24, 2)], 3),
        ([(40, 10), (10, 40), (10, 1)], None),
        ([], None),
    ],
    ids=["median", "most are very short", "most are very long", "limits", "none is readable", "no sentence"],
)
def test_the_sentence_is_the_first_of_about_median_length_that_can_be_read(lengths: list[tuple[int, int]], chosen: int | None) -> None:
    assert choose_sentence(lengths) == chosen


@pytest.mark.parametrize(("layers", "encoder", "decoder"), [(1, 1, [1]), (2, 1, [2, 1]), (6, 5, [6, 5])])
def test_the_encoder_is_shown_by_its_last_layer_but_one_and_the_decoder_by_its_last_two(
    layers: int, encoder: int, decoder: list[int]
) -> None:
    maps = maps_of(np.eye(4, dtype=np.float32), layers)
    figures = encoder_figures(maps)
    assert (figures.layer, figures.layers, [figure.head for figure in figures.heads]) == (encoder, layers, [1, 2])
    assert [figures.layer for figures in cross_figures(maps)] == decoder


def test_a_line_goes_from_the_piece_that_attends_to_what_it_sees_as_strong_as_the_weight() -> None:
    weights = np.zeros((4, 4), dtype=np.float32)
    weights[0, 2], weights[0, 3] = 0.5, 0.25
    drawn = Drawn(encoder_figures(maps_of(weights)).heads[0].svg)
    assert drawn.words() == ["the", "dog", "·s", "</s>"] * 2
    heights = {text.text: text.y for text in drawn.texts}
    left, right = drawn.texts[0].x, drawn.texts[4].x
    strongest, weaker = sorted(drawn.lines, key=lambda line: -line.opacity)
    for line, weight, seen in ((strongest, 0.5, "·s"), (weaker, 0.25, "</s>")):
        (x1, y1), (x2, y2) = line.points
        assert line.opacity == pytest.approx(opacity(weight), abs=1e-6)
        assert left < x1 < x2 < right
        assert (heights["the"] - y1, heights[seen] - y2) == (pytest.approx(BASELINE / 2, abs=BASELINE / 2),) * 2


def test_a_cell_stands_in_the_row_of_what_is_written_and_the_column_of_what_is_seen() -> None:
    figure = cross_figures(maps_of(np.eye(4, dtype=np.float32)))[0].heads[0]
    assert in_words(figure) == "strongest: die ← the, 1.00"
    drawn = Drawn(figure.svg)
    assert drawn.words() == ["die", "Hunde", "</s>", "the", "dog", "·s", "</s>"]
    (cells,) = drawn.lines
    assert cells.opacity == 1
    for (x1, y1), (x2, y2), row in zip(cells.points[::2], cells.points[1::2], drawn.texts, strict=False):
        assert (x2 - x1, y1) == (12, y2)
        assert (x1 + x2) / 2 == pytest.approx(drawn.texts[3].x - BASELINE / 2, abs=BASELINE / 2)
        assert y1 == pytest.approx(row.y - BASELINE / 2, abs=BASELINE / 2)


def test_all_is_drawn_within_the_figure() -> None:
    layers = [encoder_figures(maps_of(np.full((4, 4), 0.25, dtype=np.float32))), *cross_figures(maps_of(np.eye(4, dtype=np.float32)))]
    figures = [Drawn(head.svg) for layer in layers for head in layer.heads]
    figures += [Drawn(word_figure(even(heads, ["▁a", "▁b", "</s>"]), 0, 5).svg) for heads in (1, 4, 16)]
    for drawn in figures:
        places = [(text.x, text.y) for text in drawn.texts]
        assert all(0 < x < drawn.width and 0 < y < drawn.height for x, y in (*places, *(at for line in drawn.lines for at in line.points)))
        assert len(set(places)) == len(places)


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


def test_weights_of_a_training_that_diverged_are_not_drawn() -> None:
    figure = encoder_figures(maps_of(np.full((4, 4), np.nan, dtype=np.float32))).heads[0]
    assert (Drawn(figure.svg).lines, in_words(figure)) == ([], "strongest: the ← the, 0.00")
    assert not [line for line in Drawn(word_figure(word_maps(np.full((2, 6, 6), np.nan)), 0, 5).svg).lines if line.hover]


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_greater_weight_is_drawn_no_weaker(weight: float, other: float) -> None:
    assert 0 <= opacity(min(weight, other)) <= opacity(max(weight, other)) <= 1


@pytest.mark.parametrize(
    ("piece", "read"),
    [("▁dog", "dog"), ("s", "·s"), ("</s>", "</s>"), ("▁", "▁"), ("▁Schachbretter", "Schachbre…"), ("▁注意力就是你所需要的", "注意力就…")],
)
def test_pieces_are_written_as_one_reads_them_and_not_long(piece: str, read: str) -> None:
    assert readable(piece) == read


def word_maps(weights: NDArray[np.floating], source: list[str] = SENTENCE) -> AttentionMaps:
    """The weights (H, S, S) in layer 5 of 6, and nothing in the others."""
    encoder = np.zeros((6, *weights.shape), dtype=np.float32)
    encoder[4] = weights
    return AttentionMaps(source, [], [], {"encoder": encoder})


def even(heads: int = 2, source: list[str] = SENTENCE) -> AttentionMaps:
    return word_maps(np.full((heads, len(source), len(source)), 1 / len(source)), source)


def test_lines_go_from_the_word_to_what_it_attends_to_as_strong_as_the_weight() -> None:
    weights = np.zeros((2, 6, 6))
    weights[0, 1:3] = [0.75, 0, 0, 0.25, 0, 0]
    weights[1, 1:3] = [0, 0.5, 0.5, 0, 0, 0]
    drawn = Drawn(word_figure(word_maps(weights), 1, 5).svg)
    assert drawn.words() == ["head 1", "head 2", *WORDS, *WORDS]
    assert [text.text for text in drawn.texts if text.name == "chosen"] == ["dogs"]
    heights = {text.text: text.y for text in drawn.texts}
    lines = [line for line in drawn.lines if line.hover]
    for line, head, word, weight in zip(lines, (1, 1, 2), ("the", "see", "dogs"), (0.75, 0.25, 1), strict=True):
        (_, start), (_, end) = line.points
        assert line.hover == f"head {head}: \u2068dogs\u2069 ← \u2068{word}\u2069, {weight:.2f}"
        assert line.opacity == pytest.approx(opacity(weight), abs=1e-6)
        assert end - start == pytest.approx(heights[word] - heights["dogs"], abs=0.2)


def test_the_lines_of_the_heads_stand_side_by_side_within_the_height_of_a_word() -> None:
    drawn = Drawn(word_figure(even(heads=16), 1, 5).svg)
    heights = sorted({text.y for text in drawn.texts if text.text in WORDS})
    starts = [line.points[0][1] for line in drawn.lines if line.hover and "← \u2068the\u2069" in line.hover]
    widths = {line.style.split("stroke-width: ")[1] for line in drawn.lines if line.hover}
    (width,) = map(float, widths)
    assert all(later - earlier >= width - 0.1 for earlier, later in pairwise(starts))
    assert max(starts) - min(starts) + width < heights[1] - heights[0]


def test_a_word_is_shown_in_the_layer_asked_for() -> None:
    maps = word_maps(np.full((2, 6, 6), 1 / 6))
    figure, last = word_figure(maps, 0, 5), word_figure(maps, 0, 6)
    assert (figure.word, figure.layer, figure.layers, last.layer) == ("the", 5, 6, 6)
    assert [len([line for line in Drawn(one.svg).lines if line.hover]) for one in (figure, last)] == [2 * len(WORDS), 0]


def test_a_head_keeps_its_colour_whichever_are_shown() -> None:
    drawn = Drawn(word_figure(even(heads=8), 0, 5, heads=[5, 6]).svg)
    assert {line.hover.split(":")[0] for line in drawn.lines if line.hover} == {"head 5", "head 6"}
    assert all(head_colour(5 if "head 5" in line.hover else 6, 8) in line.style for line in drawn.lines if line.hover)


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_each_head_has_a_colour_of_its_own_that_is_seen_on_a_light_and_on_a_dark_page(heads: int) -> None:
    def luminance(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(factor * part for factor, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    colours = [head_colour(head, heads) for head in range(1, heads + 1)]
    for colour, page in ((colour, page) for colour in colours for page in ("#ffffff", "#1c2027")):
        darker, lighter = sorted((luminance(colour), luminance(page)))
        assert (lighter + 0.05) / (darker + 0.05) >= 3  # What WCAG 2 asks of graphics.
    for one, other in combinations(colours, 2):
        assert sum(abs(int(one[at : at + 2], 16) - int(other[at : at + 2], 16)) for at in (1, 3, 5)) > 40


def test_the_file_is_svg_that_needs_no_other_and_has_every_text_escaped() -> None:
    svg = word_figure(even(2, ["▁<b>&\x01", '▁"</svg>$', "</s>"]), 0, 5, alone=True).svg
    ElementTree.fromstring(svg)
    drawn = Drawn(svg)
    assert drawn.words()[-2] == "What “<b>&\ufffd” attends to"
    assert {'"</svg>$', "</s>", "head 1", "head 2"} <= set(drawn.words())
    assert "href" not in svg
    assert "url(" not in svg
    assert "head 2: \u2068<b>&\ufffd\u2069 ← \u2068</s>\u2069, 0.33" in [line.hover for line in drawn.lines]
    assert all(f"--{name}:" in svg for name in {part.split(")")[0] for part in svg.split("var(--")[1:]})
