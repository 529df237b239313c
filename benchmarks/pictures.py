"""Pictures of the tables in results: ``python benchmarks/pictures.py`` draws an SVG file beside each CSV file that is named here."""

from pathlib import Path

import pandas as pd

from transformer_core.pictures.curves import line_figure
from transformer_core.pictures.drawing import save

RESULTS = Path(__file__).with_name("results")
# The columns of which each value has a curve, that of the x axis, that of the y axis (its mean where x is equal), the label of the y axis.
PICTURES = {
    "layers": (["layer"], "n", "milliseconds", "CPU milliseconds"),
    "own-data": (["corpus", "settings"], "pairs", "valid", "BLEU of valid"),
}


def main() -> None:
    """Draw all pictures."""
    for name, (columns, place, figure, measure) in PICTURES.items():
        table = pd.read_csv(RESULTS / f"{name}.csv")
        series = {", ".join(map(str, curve)): rows.groupby(place)[figure].mean() for curve, rows in table.groupby(columns, sort=False)}
        if drawn := line_figure(series, measure, unit=place):
            save(drawn, RESULTS / f"{name}.svg")


if __name__ == "__main__":
    main()
