"""Pictures of attention: their size, their colours, and texts that a font or a drawing library may stumble over."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused
from transformer_core.evaluation.attention import AttentionMaps
from transformer_core.evaluation.heat_maps import Fonts, find_fonts, heat_maps, save_png

FONTS = Fonts(["DejaVu Sans"], "")
DARKEST = (8, 48, 107)  # Of matplotlib's "Blues".
NO_CHARACTER = "\u0378"  # Not assigned, so no font draws it.


def maps_of(source: list[str], target: list[str], weight: float = 0.0, layers: int = 1, heads: int = 1) -> AttentionMaps:
    """Every weight 0 but that in the middle."""
    weights = np.zeros((layers, heads, len(target), len(source)), dtype=np.float32)
    weights[:, :, len(target) // 2, len(source) // 2] = weight
    return AttentionMaps(source, target, target, {"cross": weights})


def drawn(maps: AttentionMaps, path: Path, layers: tuple[int, ...] = (1,), heads: tuple[int, ...] = (1,)) -> Image.Image:
    save_png(heat_maps(maps, "cross", layers, heads, FONTS), path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return image.convert("RGB")


def blocks(image: Image.Image) -> int:
    return int((np.asarray(image) == DARKEST).all(axis=2).sum())


def test_each_token_takes_sixteen_pixels_and_each_layer_and_head_a_map(tmp_path: Path) -> None:
    def size(source: int, target: int, layers: int = 1, heads: int = 1) -> tuple[int, int]:
        maps = maps_of(["ab"] * source, ["abc"] * target, layers=layers, heads=heads)
        return drawn(maps, tmp_path / "a.png", tuple(range(1, layers + 1)), tuple(range(1, heads + 1))).size

    width, height = size(30, 20)
    assert size(31, 20) == (width + 16, height)
    assert size(30, 22) == (width, height + 32)
    # A map with its labels: what a second layer or head adds.
    assert size(30, 20, heads=3)[0] - size(30, 20, heads=2)[0] == pytest.approx(30 * 16 + 50, abs=20)
    assert size(30, 20, layers=3)[1] - size(30, 20, layers=2)[1] == pytest.approx(20 * 16 + 50, abs=20)


def test_labels_have_the_room_that_they_take(tmp_path: Path) -> None:
    for piece in ("▁WWWWWWWWWWWWWWW", "ЩЩЩЩЩЩЩЩЩЩЩЩЩЩЩЩ", "iiiiiiiiiiiiiiii", NO_CHARACTER * 8):
        pixels = np.asarray(drawn(maps_of([piece] * 20, [piece] * 3), tmp_path / "a.png"))
        heading = 85  # Pixels; below it the left edge has labels, and so has the lower one.
        assert (pixels[heading:, 0] == 255).all()
        assert (pixels[heading:, 1:6] < 128).any()
        assert (pixels[-1] == 255).all()
        assert (pixels[-6:-1] < 128).any()


def test_a_weight_of_one_is_the_darkest_cell_and_a_weight_of_nothing_is_no_colour(tmp_path: Path) -> None:
    source, target = ["a"] * 30, ["b"] * 20
    empty = blocks(drawn(maps_of(source, target), tmp_path / "a.png"))  # The scale's upper end alone.
    full = blocks(drawn(maps_of(source, target, weight=1.0), tmp_path / "b.png"))
    assert full - empty == pytest.approx(16 * 16, abs=16)  # A cell's edge need not be a pixel's.


def test_the_chosen_layers_and_heads_are_drawn_and_no_other(tmp_path: Path) -> None:
    maps = maps_of(["a"] * 12, ["b"] * 12, layers=2, heads=3)
    maps.weights["cross"][1, 2] = 1.0
    of_it, beside_it = (blocks(drawn(maps, tmp_path / "a.png", (layer,), (3,))) for layer in (2, 1))
    assert of_it - beside_it == pytest.approx((12 * 16) ** 2, rel=0.05)


def test_dollars_are_dollars_and_one_token_is_a_map(tmp_path: Path) -> None:
    assert drawn(maps_of(["$5$", "$\\x_", "</s>"], ["$"]), tmp_path / "a.png").size[0] >= 400


def test_a_letter_that_matplotlibs_font_lacks_is_looked_for_in_others() -> None:
    plain = find_fonts(["▁Straße", "▁café", "▁كيف", "</s>"])
    assert plain == Fonts(["DejaVu Sans"], "")
    more = find_fonts(["a", "\u2a7d\u1d81"])  # STIX, which comes with matplotlib too, has the second.
    assert more.families[0] == "DejaVu Sans"
    assert len(more.families) == 2
    assert more.missing == ""


def test_what_no_font_draws_is_told_once_and_neither_warned_of_nor_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fonts = find_fonts(["a\u200d", NO_CHARACTER, f"b{NO_CHARACTER}"])
    assert fonts.missing == NO_CHARACTER  # The joiner has no shape of its own.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_png(heat_maps(maps_of([NO_CHARACTER], ["a"]), "cross", [1], [1], fonts), tmp_path / "a.png")
    assert caplog.records == []


def test_a_picture_begins_with_its_sentences_and_has_the_reports_signs_of_pieces() -> None:
    maps = maps_of(["▁The", "▁dog", "s", "</s>"], ["▁Die", "▁Hunde", "</s>"])
    axes, *_ = heat_maps(maps, "cross", [1], [1], FONTS).axes
    heading, title, *labels = [text.get_text() for text in axes.texts]
    assert heading.split("\n")[2:] == ["The dogs", "Die Hunde"]
    assert title == "layer 1, head 1"
    assert labels == ["Die", "Hunde", "</s>", "The", "dog", "·s", "</s>"]


def test_a_long_sentence_is_cut_to_the_picture() -> None:
    maps = maps_of([*["▁word"] * 200, "</s>"], ["▁b", "</s>"])
    figure = heat_maps(maps, "cross", [1], [1], FONTS)
    sentence = figure.axes[0].texts[0].get_text().split("\n")[2]
    assert sentence.endswith("…")
    assert len(sentence) < 450


def test_a_picture_of_hundreds_of_megapixels_is_refused() -> None:
    maps = maps_of(["a"] * 200, ["b"] * 200, layers=6, heads=8)
    with refused(78, r"of so many maps would have \d+ megapixels, more than 60\. Choose fewer layers or heads\."):
        heat_maps(maps, "cross", range(1, 7), range(1, 9), FONTS)


def test_one_map_that_is_too_large_is_refused_for_its_sentence() -> None:
    maps = maps_of(["a"] * 500, ["b"] * 500, layers=2)
    for layers in ([1], [1, 2]):
        with refused(78, r"a picture of so long a sentence would have \d+ megapixels, more than 60\. Shorten it\."):
            heat_maps(maps, "cross", layers, [1], FONTS)
