"""The attention of heads in one sentence, as numbers and as pictures: the data of the paper's Figures 3 to 5."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.corpus.tokens.subword import SPACE_MARK
from transformer_core.pictures.drawing import as_image, columns_of, new_figure, readable, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["encoder", "decoder", "cross"]

# Heads in a row of a picture, and the number of pieces up to which so many fit.
HEADS_ACROSS, FEW_PIECES = 4, 14
# Pixels.
_CELL, _GAP, _TITLE, _HEADING, _MARGIN, _SCALE = 16, 20, 25, 85, 8, 80
_LEAST_WIDTH, _LEAST_HEIGHT, _LETTER = 400, 270, 8
_POINTS, _HEADING_POINTS = 7.5, 9.0
# A "$" in a label does not start mathematics.
_STYLE: dict[str, Any] = {"parse_math": False, "fontsize": _POINTS}
_HEADINGS: dict[Kind, tuple[str, str]] = {
    "encoder": ("Encoder self-attention", "row: source token, column: what it attends to"),
    "decoder": ("Decoder self-attention", "row: target token read, column: what it attends to"),
    "cross": ("Attention to the source", "row: target token predicted, column: what is attended to"),
}


@dataclass(frozen=True)
class AttentionMaps:
    """All attention weights for one sentence pair. Layers and heads count from 1, as in the paper."""

    source: list[str]  # The S pieces that the encoder reads, the end token last.
    read: list[str]  # The T pieces that the decoder reads, the begin token first.
    predicted: list[str]  # The T pieces that the decoder predicts, the end token last; `predicted[t]` is predicted from `read[:t + 1]`.
    weights: Mapping[Kind, NDArray[np.float32]]  # Weights of each kind that the model has, (N, H, S or T, S or T) float32; rows sum to 1.

    def layers(self, kind: Kind, chosen: Sequence[int]) -> list[int]:
        """Return the chosen layers that a kind has: encoder and decoder may differ in their number."""
        return [layer for layer in chosen if layer <= len(self.weights[kind])]

    def document(self, kinds: Sequence[Kind], layers: Sequence[int], heads: Sequence[int]) -> dict[str, Any]:
        """Return the chosen maps as a JSON document, with weights rounded to six decimals, and null for NaN, which JSON lacks."""
        return {
            "source": self.source,
            "target_read": self.read,
            "target_predicted": self.predicted,
            "attention": [
                {"kind": kind, "layer": layer, "head": head, "weights": _rounded(self.weights[kind][layer - 1, head - 1])}
                for kind in kinds
                for layer in self.layers(kind, layers)
                for head in heads
            ],
        }


def attention_picture(maps: AttentionMaps, kind: Kind, heads: Sequence[tuple[int, int]], across: int) -> "Figure":
    """Draw a heat map for each head, given by layer and head from 1, `across` in a row, below the sentences.

    All have one colour scale from 0 to 1: a square root, so that 1/20 is visible. Sentences are cut to the width of the picture.
    """
    from matplotlib.colors import PowerNorm

    shown = {"encoder": [maps.source], "decoder": [maps.predicted], "cross": [maps.source, maps.predicted]}[kind]
    heading = [*_HEADINGS[kind], *("".join(pieces[:-1]).replace(SPACE_MARK, " ").strip() for pieces in shown)]
    attending = {"encoder": maps.source, "decoder": maps.read, "cross": maps.predicted}[kind]
    rows, columns = (list(map(readable, pieces)) for pieces in (attending, maps.read if kind == "decoder" else maps.source))
    beside, map_width, map_height = _label_width(rows), len(columns) * _CELL, len(rows) * _CELL
    panel_width, panel_height = beside + map_width + _GAP, _TITLE + map_height + _label_width(columns)
    width = max(_LEAST_WIDTH, min(across, len(heads)) * panel_width + _SCALE)
    height = max(_LEAST_HEIGHT, _HEADING + -(-len(heads) // across) * panel_height)
    figure = new_figure(width, height)
    lines = "\n".join(shortened(line, int((width - 2 * _MARGIN) / _LETTER)) for line in heading)
    figure.text(_MARGIN / width, 1 - _MARGIN / height, lines, va="top", linespacing=1.4, **{**_STYLE, "fontsize": _HEADING_POINTS})
    norm = PowerNorm(0.5, vmin=0, vmax=1)
    for number, (layer, head) in enumerate(heads):
        left = number % across * panel_width + beside
        top = _HEADING + number // across * panel_height + _TITLE
        axes = figure.add_axes((left / width, 1 - (top + map_height) / height, map_width / width, map_height / height))
        image = axes.imshow(maps.weights[kind][layer - 1, head - 1], "Blues", norm, aspect="auto", interpolation="nearest")
        axes.set_title(f"layer {layer}, head {head}", fontsize=_POINTS, pad=4)
        axes.set_xticks(range(len(columns)), columns, rotation=90, **_STYLE)
        axes.set_yticks(range(len(rows)), rows, **_STYLE)
        axes.tick_params(length=0, pad=3)
        axes.spines[:].set_color("0.8")
    scale = figure.add_axes((1 - 60 / width, 1 - (_HEADING + _TITLE + 150) / height, 10 / width, 150 / height))
    figure.colorbar(image, scale, ticks=(0, 0.1, 0.25, 0.5, 1), format="{x:g}").outline.set_edgecolor("0.8")
    scale.tick_params(length=0, labelsize=_POINTS)
    return figure


def _label_width(labels: Iterable[str]) -> int:
    """Return the approximate width of the longest label in pixels, with a gap at one end."""
    return _MARGIN + _LETTER * max(map(columns_of, labels))


class LayerPicture(NamedTuple):
    """The heads of a layer as an HTML element; layers count from 1, as in the paper."""

    kind: Kind
    layer: int
    layers: int
    image: str


def layer_pictures(maps: AttentionMaps) -> list[LayerPicture]:
    """Draw all heads of the encoder's last layer but one, as the paper shows 5 of 6, and of the last attention to the source."""
    across = HEADS_ACROSS if len(maps.source) <= FEW_PIECES else HEADS_ACROSS // 2
    pictures = []
    for kind in (kind for kind in maps.weights if kind != "decoder"):
        layers, heads = maps.weights[kind].shape[:2]
        layer = max(1, layers - 1) if kind == "encoder" else layers
        figure = attention_picture(maps, kind, [(layer, head) for head in range(1, heads + 1)], across)
        pictures.append(LayerPicture(kind, layer, layers, as_image(figure, f"Attention of layer {layer}, {heads} heads")))
    return pictures


def _rounded(weights: NDArray[np.float32]) -> list[list[float | None]]:
    return [[None if isnan(weight) else round(weight, 6) for weight in row] for row in weights.tolist()]
