"""Pictures of the tables in results: ``python benchmarks/pictures.py`` draws an SVG file beside each CSV file that is named here."""

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from transformer_core.pictures.curves import line_figure
from transformer_core.pictures.drawing import save

RESULTS = Path(__file__).with_name("results")


class Picture(NamedTuple):
    """A curve for each value of the first columns: the mean of a figure over the rows with the same place."""

    curves: tuple[str, ...]
    place: str
    figure: str
    measure: str  # The label of the axis of the figure.


PICTURES = {
    "layers": Picture(("layer",), "n", "milliseconds", "CPU milliseconds"),
    "own-data": Picture(("corpus", "settings"), "pairs", "valid", "BLEU of valid"),
}


def main() -> None:
    """Draw all pictures."""
    for name, picture in PICTURES.items():
        table = pd.read_csv(RESULTS / f"{name}.csv")
        series = {
            ", ".join(map(str, curve)): rows.groupby(picture.place)[picture.figure].mean()
            for curve, rows in table.groupby([*picture.curves], sort=False)
        }
        figure = line_figure(series, picture.measure, unit=picture.place)
        if figure is not None:
            save(figure, RESULTS / f"{name}.svg")


if __name__ == "__main__":
    main()
