"""Positional encodings as a picture (paper 3.5): their values, and their dot products by the distance of two positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_core.errors import configuration_error
from transformer_core.models.embeddings import LearnedPositions, sinusoidal_positions
from transformer_core.models.transformer import Transformer
from transformer_core.models.translation import TranslationModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_VALUES = 4_000_000  # Limit of values in a heat map; the file then has several megabytes.

# Inches and points.
_WIDTH, _ROW, _CAPTION_LINE, _MARGIN = 10.0, 3.9, 0.17, 0.15
_HEADING_POINTS, _POINTS, _CAPTION_CHARACTERS = 10.0, 8.5, 150
_COLOURS, _PANELS = "RdBu", (1.35, 1)
_PRODUCT = "PE(pos) · PE(pos + k)"


class Encodings(NamedTuple):
    """Vectors that one side of a model adds to its embeddings.

    Attributes:
        side: "source" or "target"; empty if both sides have the same.
        values: (positions, D) float64.
        learned: True for learned positions (Table 3, row E), False for the paper's formula.
    """

    side: str
    values: NDArray[np.float64]
    learned: bool


def sinusoids(positions: int, d_model: int) -> Encodings:
    """Return the encodings of the paper's formula, in float64.

    Raises `UserError` (78): more than `MOST_VALUES` values, or an odd d_model, which does not divide into pairs of sine and cosine.
    """
    if d_model % 2:
        raise configuration_error(f"d_model is {d_model}, but sines and cosines come in pairs", "Choose an even number.")
    _check_size(positions, d_model)
    return Encodings("", sinusoidal_positions(positions, d_model, torch.float64).numpy(), learned=False)


def encodings_of(model: TranslationModel, positions: int) -> list[Encodings]:
    """Return the encodings of the first positions that a model adds to its embeddings: one table, or two (source, target) if learned.

    Raises `UserError` (78): the model has no positions (a recurrent one, or `positions: none`) or has learned fewer; or there are too many
    values to draw.
    """
    if isinstance(model, Transformer) and isinstance(model.source_positions, LearnedPositions):
        if positions > len(model.source_positions.weight):
            raise configuration_error(f"{positions} positions requested, but the model has learned {len(model.source_positions.weight)}")
        _check_size(positions, model.d_model)
        sides = {"source": model.source_positions, "target": model.target_positions}
        with torch.inference_mode():
            tables = {name: side(0, positions).double().cpu().numpy() for name, side in sides.items() if side is not None}
        return [Encodings(name, table, learned=True) for name, table in tables.items()]
    if not model.has_positions or (isinstance(model, Transformer) and model.source_positions is None):
        why = "its setting model.positions is none" if model.has_positions else "a recurrent one reads the words in their order"
        raise configuration_error(f"this model has no positional encodings: {why}")
    return [sinusoids(positions, model.d_model)]


def products(encodings: Encodings) -> dict[int, pd.Series[float]]:
    """Return for at most five positions, from the first to the last, their dot products with all positions, by the distance k of these."""
    import pandas as pd

    values = encodings.values
    chosen = dict.fromkeys((len(values) - 1) * part // 4 for part in range(5))
    return {position: pd.Series(values @ values[position], np.arange(len(values)) - position) for position in chosen}


def spread(curves: Mapping[int, pd.Series[float]]) -> float:
    """Return the largest difference between two curves at the same k; 0 if the product depends only on k."""
    import pandas as pd

    by_distance = pd.concat(list(curves.values())).groupby(level=0)
    return float((by_distance.max() - by_distance.min()).max())


def position_figure(sides: Sequence[Encodings]) -> Figure:
    """Draw two panels per side: the heat map PE(pos, i), and the dot products PE(pos) · PE(pos + k) over k for several pos."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    curves = [products(side) for side in sides]
    caption = fill(_caption(sides[0], max(map(spread, curves))), _CAPTION_CHARACTERS)
    below = _CAPTION_LINE * (caption.count("\n") + 1) + _MARGIN
    height = _ROW * len(sides) + below
    figure = Figure((_WIDTH, height), layout=ConstrainedLayoutEngine(rect=(0, below / height, 1, 1 - below / height)))
    panels = figure.subplots(len(sides), 2, squeeze=False, width_ratios=_PANELS)
    for (values, over_distance), side, lines in zip(panels, sides, curves, strict=True):
        _draw_values(values, side)
        _draw_products(over_distance, side, lines)
    figure.text(_MARGIN / _WIDTH, _MARGIN / 2 / height, caption, fontsize=_POINTS, va="bottom", linespacing=1.3)
    return figure


def _draw_values(axes: Axes, encodings: Encodings) -> None:
    most = float(np.abs(encodings.values).max()) if encodings.learned else 1.0
    # With "none" each value is a pixel of the image in the SVG; any other setting would resample the values.
    image = axes.imshow(encodings.values, _COLOURS, vmin=-most, vmax=most, aspect="auto", interpolation="none")
    _label(axes, "PE(pos, i)", encodings, "dimension i")
    axes.set_ylabel("position pos", fontsize=_POINTS)
    axes.figure.colorbar(image, ax=axes, pad=0.02).ax.tick_params(labelsize=_POINTS)


def _draw_products(axes: Axes, encodings: Encodings, curves: Mapping[int, pd.Series[float]]) -> None:
    for number, (position, curve) in enumerate(curves.items()):
        # Curves of the formula coincide, so each is drawn thinner than those beneath it; learned curves do not coincide.
        width = 1.2 if encodings.learned else 1.0 + 1.6 * (len(curves) - 1 - number)
        axes.plot(curve.index, curve.to_numpy(), linewidth=width, label=f"pos = {position}")
    _label(axes, _PRODUCT, encodings, "distance k")
    axes.grid(color="0.9")
    axes.legend(fontsize=_POINTS, frameon=False)


def _label(axes: Axes, what: str, encodings: Encodings, across: str) -> None:
    axes.set_title(f"{what}, {encodings.side}" if encodings.side else what, fontsize=_HEADING_POINTS)
    axes.set_xlabel(across, fontsize=_POINTS)
    axes.tick_params(labelsize=_POINTS)


def _caption(encodings: Encodings, difference: float) -> str:
    count, d_model = encodings.values.shape
    product = _unbroken(_PRODUCT)
    if encodings.learned:
        return (
            f"Learned positions (Table 3, row E): {count} vectors of {d_model} dimensions for the source and as many for the target. "
            f"Nothing makes {product} depend on k alone: at the same k two curves differ by up to {difference:.3g}."
        )
    sine = _unbroken(f"PE(pos, 2i) = sin(pos / 10000^(2i / {d_model}))")
    cosine = _unbroken("PE(pos, 2i + 1) = cos of the same")
    summed = _unbroken(f"cos(k / 10000^(2i / {d_model}))")
    return (
        f"{sine} and {cosine} (paper 3.5), {count} positions. {product} is the sum of {summed} over i, {d_model // 2} at k = 0: "
        f"it depends on k alone, so the curves of all pos lie on each other (here to within {difference:.0e})."
    )


def _unbroken(formula: str) -> str:
    """Replace the formula's spaces by no-break spaces."""
    return formula.replace(" ", "\N{NO-BREAK SPACE}")


def _check_size(positions: int, d_model: int) -> None:
    if positions * d_model > MOST_VALUES:
        fault = f"{positions:,} positions of {d_model:,} dimensions are {positions * d_model:,} values, more than {MOST_VALUES:,}"
        raise configuration_error(fault, "Choose fewer positions.")
