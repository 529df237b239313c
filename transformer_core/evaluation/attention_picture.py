"""The attention of heads in one sentence as a picture: the data of the paper's Figures 3 to 5."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer_core.corpus.tokens.subword import SPACE_MARK
from transformer_core.pictures.drawing import Fonts, find_fonts, readable
from transformer_core.pictures.heat_maps import heat_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_core.evaluation.attention import AttentionMaps, Kind

_HEADINGS: dict[Kind, tuple[str, str]] = {
    "encoder": ("Encoder self-attention", "row: source token, column: what it attends to"),
    "decoder": ("Decoder self-attention", "row: target token read, column: what it attends to"),
    "cross": ("Attention to the source", "row: target token predicted, column: what is attended to"),
}


def fonts_of(maps: AttentionMaps) -> Fonts:
    """Return fonts for the pieces of a sentence pair."""
    pieces = [*maps.source, *maps.read, *maps.predicted]
    return find_fonts([*pieces, *map(readable, pieces)])


def attention_picture(maps: AttentionMaps, kind: Kind, heads: Sequence[tuple[int, int]], across: int, fonts: Fonts) -> Figure:
    """Draw a heat map for each head, given by layer and head from 1, `across` in a row. Raises `UserError` (78): as `heat_maps`."""
    shown = {"encoder": [maps.source], "decoder": [maps.predicted], "cross": [maps.source, maps.predicted]}[kind]
    sentences = ["".join(pieces[:-1]).replace(SPACE_MARK, " ").strip() for pieces in shown]
    rows, columns = (list(map(readable, pieces)) for pieces in (maps.rows(kind), maps.columns(kind)))
    panels = [(f"layer {layer}, head {head}", maps.of(kind, layer, head)) for layer, head in heads]
    return heat_maps(panels, rows, columns, [*_HEADINGS[kind], *sentences], across, fonts)
