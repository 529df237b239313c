"""The attention of heads in one sentence, as numbers and as pictures: the data of the paper's Figures 3 to 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transformer_core.corpus.tokens.subword import SPACE_MARK
from transformer_core.pictures.drawing import as_image, readable
from transformer_core.pictures.heat_maps import heat_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["encoder", "decoder", "cross"]

_DECIMALS = 6
# Heads in a row of a picture, and the number of pieces up to which so many fit.
HEADS_ACROSS, FEW_PIECES = 4, 14
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

    def rows(self, kind: Kind) -> list[str]:
        """Return the pieces that attend; for attention to the source, those that the decoder predicts."""
        return {"encoder": self.source, "decoder": self.read, "cross": self.predicted}[kind]

    def columns(self, kind: Kind) -> list[str]:
        """Return the pieces that are attended to."""
        return self.read if kind == "decoder" else self.source

    def layers(self, kind: Kind, chosen: Sequence[int]) -> list[int]:
        """Return the chosen layers that a kind has: encoder and decoder may differ in their number."""
        return [layer for layer in chosen if layer <= len(self.weights[kind])]

    def of(self, kind: Kind, layer: int, head: int) -> NDArray[np.float32]:
        """Return the weights of one head, (rows, columns)."""
        weights: NDArray[np.float32] = self.weights[kind][layer - 1, head - 1]
        return weights

    def document(self, kinds: Sequence[Kind], layers: Sequence[int], heads: Sequence[int]) -> dict[str, Any]:
        """Return the chosen maps as a JSON document, with weights rounded to six decimals, and null for NaN, which JSON lacks."""
        return {
            "source": self.source,
            "target_read": self.read,
            "target_predicted": self.predicted,
            "attention": [
                {"kind": kind, "layer": layer, "head": head, "weights": _rounded(self.of(kind, layer, head))}
                for kind in kinds
                for layer in self.layers(kind, layers)
                for head in heads
            ],
        }


def attention_picture(maps: AttentionMaps, kind: Kind, heads: Sequence[tuple[int, int]], across: int) -> Figure:
    """Draw a heat map for each head, given by layer and head from 1, `across` in a row."""
    shown = {"encoder": [maps.source], "decoder": [maps.predicted], "cross": [maps.source, maps.predicted]}[kind]
    sentences = ["".join(pieces[:-1]).replace(SPACE_MARK, " ").strip() for pieces in shown]
    rows, columns = (list(map(readable, pieces)) for pieces in (maps.rows(kind), maps.columns(kind)))
    panels = [(f"layer {layer}, head {head}", maps.of(kind, layer, head)) for layer, head in heads]
    return heat_maps(panels, rows, columns, [*_HEADINGS[kind], *sentences], across)


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
    return [[None if isnan(weight) else round(weight, _DECIMALS) for weight in row] for row in weights.tolist()]
