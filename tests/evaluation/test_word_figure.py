"""One word's attention as lines: where they go, how strong they are, and the colours of the heads."""

from itertools import combinations, pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from transformer_core.evaluation.attention import AttentionMaps
from transformer_core.evaluation.attention_figures import opacity
from transformer_core.evaluation.word_figure import as_svg, head_colour, word_figure

SOURCE = ["▁the", "▁dog", "s", "▁see", ".", "</s>"]
WORDS = ["the", "dogs", "see", ".", "</s>"]


def maps_of(weights: NDArray[np.floating], source: list[str] = SOURCE, layers: int = 6) -> AttentionMaps:
    """The same weights (H, S, S) in the layer that is shown, and nothing in the others."""
    encoder = np.zeros((layers, *weights.shape), dtype=np.float32)
    encoder[max(0, layers - 2)] = weights
    return AttentionMaps(source, [], [], {"encoder": encoder})


def even(heads: int = 2, source: list[str] = SOURCE) -> AttentionMaps:
    return maps_of(np.full((heads, len(source), len(source)), 1 / len(source)), source)


def test_lines_go_from_the_word_to_what_it_attends_to_as_strong_as_the_weight() -> None:
    weights = np.zeros((2, 6, 6))
    weights[0, 1:3] = [0.75, 0, 0, 0.25, 0, 0]
    weights[1, 1:3] = [0, 0.5, 0.5, 0, 0, 0]
    figure = word_figure(maps_of(weights), 1)
    assert [(place.text, place.chosen) for place in figure.attending] == [(word, word == "dogs") for word in WORDS]
    heights = {place.text: place.y for place in figure.attended}
    assert list(heights) == WORDS
    first, second = figure.heads
    shift = first.lines[0].from_y - heights["dogs"]
    assert [(line.to_y - shift, line.opacity) for line in first.lines] == [
        (pytest.approx(heights["the"]), opacity(0.75)),
        (pytest.approx(heights["see"]), opacity(0.25)),
    ]
    assert [(line.to_y + shift, line.opacity) for line in second.lines] == [(pytest.approx(heights["dogs"]), 1.0)]


def test_the_lines_of_the_heads_stand_side_by_side_within_the_height_of_a_word() -> None:
    figure = word_figure(even(heads=16), 1)
    heights = [place.y for place in figure.attended]
    starts = [head.lines[0].from_y for head in figure.heads]
    assert all(later - earlier >= figure.stroke for earlier, later in pairwise(starts))
    assert max(starts) - min(starts) + figure.stroke < heights[1] - heights[0]


@pytest.mark.parametrize(("layers", "shown"), [(1, 1), (2, 1), (6, 5)])
def test_the_layer_is_the_last_but_one_unless_one_is_named(layers: int, shown: int) -> None:
    maps = maps_of(np.full((2, 6, 6), 1 / 6), layers=layers)
    assert (word_figure(maps, 0).layer, word_figure(maps, 0, layers).layer) == (shown, layers)
    assert all(head.lines for head in word_figure(maps, 0).heads)


def test_a_head_keeps_its_colour_whichever_are_shown() -> None:
    every = {head.head: head.colour for head in word_figure(even(heads=8), 0).heads}
    some = {head.head: head.colour for head in word_figure(even(heads=8), 0, heads=[5, 6]).heads}
    assert some == {head: every[head] for head in (5, 6)}


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


@pytest.mark.parametrize("heads", [1, 4, 16])
def test_all_is_drawn_within_the_figure(heads: int) -> None:
    figure = word_figure(even(heads, ["▁a", "▁b", "</s>"]), 0)
    places = [(place.x, place.y) for place in (*figure.attending, *figure.attended)] + [(head.key_x, head.key_y) for head in figure.heads]
    assert all(0 < x < figure.width and 0 < y < figure.height for x, y in places)
    assert len(set(places)) == len(places)
    assert min(head.key_y for head in figure.heads) > max(place.y for place in figure.attended)


def test_the_file_is_svg_that_needs_no_other_and_has_every_text_escaped() -> None:
    svg = as_svg(word_figure(even(2, ["▁<b>&", '▁"</svg>', "</s>"]), 0))
    root = ElementTree.fromstring(svg)
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert shown[0] == "What “<b>&” attends to"
    assert {'"</svg>', "</s>", "head 1", "head 2"} <= set(shown)
    assert "href" not in svg
    assert "url(" not in svg
    tooltips = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "head 2: \u2068<b>&\u2069 ← \u2068</s>\u2069, 0.33" in tooltips


def test_weights_of_a_training_that_diverged_are_not_drawn() -> None:
    figure = word_figure(maps_of(np.full((2, 6, 6), np.nan)), 0)
    assert [head.lines for head in figure.heads] == [[], []]
